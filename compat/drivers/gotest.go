// Runs the tests of some packages of Go's standard library and writes down how each test ended.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
}

type outcome struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

func main() {
	record, err := os.Create(os.Getenv("COMPAT_OUTCOMES"))
	check(err)
	lines := json.NewEncoder(record)
	root := os.Getenv("COMPAT_GOROOT")
	arguments := []string{"test", "-json", "-short", "-vet=off"}
	arguments = append(arguments, strings.Fields(os.Getenv("COMPAT_PACKAGES"))...)
	command := exec.Command(filepath.Join(root, "bin", "go"), arguments...)
	command.Env = append(os.Environ(), "GOROOT="+root, "GOFLAGS=-buildvcs=false", "GOTOOLCHAIN=local",
		"CGO_ENABLED=0", "GOPROXY=off", "GOPATH=/tmp/gopath",
		"GOCACHE="+filepath.Join(os.TempDir(), "gocache"), "XDG_CONFIG_HOME="+os.TempDir())
	command.Dir = filepath.Join(root, "src")
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	check(err)
	check(command.Start())
	outcomes := map[string]string{"run": "started", "pass": "passed", "fail": "failed", "skip": "skipped"}
	said := map[string]string{}
	scanner := bufio.NewScanner(output)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil {
			fmt.Fprintln(os.Stderr, scanner.Text())
			continue
		}
		name := strings.TrimSpace(e.Package + " " + e.Test)
		if e.Action == "output" {
			said[name] = tail(said[name] + e.Output)
		}
		if found, known := outcomes[e.Action]; known {
			check(lines.Encode(outcome{name, found, said[name]}))
		}
	}
	command.Wait() // a failed test is in the record already
	check(lines.Encode(outcome{Outcome: "complete"}))
}

func tail(text string) string {
	if len(text) > 4000 {
		return text[len(text)-4000:]
	}
	return text
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
