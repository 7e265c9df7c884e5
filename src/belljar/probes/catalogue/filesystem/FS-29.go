package main

/*
#include "{{HOST_CANARY_PATH}}"
*/
import "C"

func main() { println("BUILT FS-29") }
