// The driver at the other end of standard input and output: results of features, and commands for the broker.

package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// notApplicable is what a feature panics with when it cannot be asked of this library or this broker.
type notApplicable string

var answers = bufio.NewScanner(os.Stdin)

// control has the driver do something to the broker or to this process, and waits until it is done.
func control(command string) {
	fmt.Println("do", command)
	answers.Scan()
	if answer := answers.Text(); answer != "done" {
		panic(notApplicable(strings.TrimPrefix(answer, "n/a ")))
	}
}

// report prints how a feature or a pattern went, and gives whether it failed.
func report(name, wrong, unable string) bool {
	switch {
	case wrong != "":
		fmt.Printf("fail %s: %s\n", name, strings.Join(strings.Fields(wrong), " "))
	case unable != "":
		fmt.Printf("n/a %s: %s\n", name, unable)
	default:
		fmt.Println("ok", name)
	}
	return wrong != ""
}
