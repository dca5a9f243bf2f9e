// RabbitMQ's tutorial patterns with amqp091-go, every result checked. See ../README.md.

package main

import (
	"fmt"
	"os"
)

func main() {
	patterns := []struct {
		name string
		run  func(*names)
	}{
		{"work-queue", workQueue},
		{"publish-subscribe", publishSubscribe},
		{"routing", routing},
		{"topics", topics},
		{"rpc", rpc},
		{"confirms", confirms},
		{"errors", refusals},
		{"messages", messages},
		{"queues", queues},
	}
	code := 0
	for _, pattern := range patterns {
		names := &names{prefix: run + "." + pattern.name + "."}
		wrong := attempt(func() { pattern.run(names) })
		leftOver := attempt(names.deleteAll)
		if wrong == "" {
			wrong = leftOver
		}
		if wrong == "" {
			fmt.Println("ok", pattern.name)
		} else {
			code = 1
			fmt.Printf("fail %s: %s\n", pattern.name, wrong)
		}
	}
	os.Exit(code)
}
