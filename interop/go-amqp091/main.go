// RabbitMQ's tutorial patterns and the features of ../FEATURES.md with amqp091-go, every result checked. See ../README.md.

package main

import "os"

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
		{"connect", connecting},
		{"declare", declare},
		{"properties", roundTrip},
		{"consume", consuming},
		{"get", getting},
		{"tx", transactions},
		{"large", large},
		{"cancel-notify", cancelNotify},
		{"channel-errors", channelErrors},
		{"connection-errors", connectionErrors},
		{"idle", idle},
		{"frozen", frozen},
		{"stalled", stalled},
		{"blocked", blocked},
		{"restart", restarted},
		{"kill", killed},
		{"consumer-timeout", consumerTimeout},
		{"concurrency", concurrency},
		{"tls", secure},
	}
	code := 0
	for _, pattern := range patterns {
		names := &names{prefix: run + "." + pattern.name + "."}
		wrong, unable := attempt(func() { pattern.run(names) })
		leftOver, _ := attempt(names.deleteAll)
		if wrong == "" {
			wrong = leftOver
		}
		if report(pattern.name, wrong, unable) {
			code = 1
		}
	}
	os.Exit(code)
}
