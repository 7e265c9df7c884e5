package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	seen := ""
	for _, dir := range []string{
		os.Getenv("GOCACHE"), os.Getenv("GOMODCACHE"), os.ExpandEnv("$HOME/.cache/go-build"),
		os.ExpandEnv("$HOME/go/pkg"), "/root/.cache/go-build", "/tmp/go-build",
	} {
		if dir == "" {
			continue
		}
		marker := filepath.Join(dir, "probe-cc21-marker")
		if _, err := os.Stat(marker); err == nil {
			seen += marker + " "
		} else {
			_ = os.WriteFile(marker, []byte("x"), 0600)
		}
	}
	if seen != "" {
		fmt.Println("PROBE CC-21 BROKEN: marker of an earlier run in " + seen)
	} else {
		fmt.Println("PROBE CC-21 HELD")
	}
}
