// What the broker refuses and what goes on afterwards; the ends of queues and consumers.

package main

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

func refusals(names *names) {
	queue, missing := names.queue("durable"), names.queue("missing")
	connection := connect()
	channel := open(connection)
	declareDurable(channel, queue)
	publishConfirmed(connection, queue, bare("still here"))
	refused(connection, amqp.NotFound, noQueue(missing), func(other *amqp.Channel) error {
		_, err := look(other, missing)
		return err
	})
	refused(connection, amqp.NotFound, noQueue(missing), func(other *amqp.Channel) error {
		_, err := other.Consume(missing, "", acking, false, false, false, nil)
		return err
	})
	refused(connection, amqp.PreconditionFailed, fmt.Sprintf(
		"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '%s' in vhost '%s': "+
			"received 'false' but current is 'true'", queue, uri.Vhost),
		func(other *amqp.Channel) error {
			_, err := other.QueueDeclare(queue, false, false, false, false, nil)
			return err
		})
	refused(connection, amqp.PreconditionFailed, "PRECONDITION_FAILED - unknown delivery tag 99",
		func(other *amqp.Channel) error { return other.Ack(99, false) })
	refused(connection, amqp.NotFound, fmt.Sprintf("NOT_FOUND - no exchange '%s' in vhost '%s'", missing, uri.Vhost),
		func(other *amqp.Channel) error { return other.Publish(missing, "", false, false, bare("lost")) })
	after, ok, err := channel.Get(queue, autoAck)
	succeed(err)
	equal("after the channel errors", all(true, "still here", false), all(ok, string(after.Body), after.Redelivered))
	succeed(connection.Close())

	wrong := uri
	wrong.Password = "wrong"
	_, err = dial(wrong)
	// The library's own text for the broker's ACCESS_REFUSED.
	equalError(amqp.AccessRefused, "username or password not allowed", err)
	elsewhere := uri
	elsewhere.Vhost = missing
	_, err = dial(elsewhere)
	equalError(amqp.NotAllowed, fmt.Sprintf("NOT_ALLOWED - vhost %s not found", missing), err)
}

func queues(names *names) {
	queue, autoDelete := names.queue("queue"), names.queue("auto-delete")
	connection, other := connect(), connect()
	channel := open(connection)
	declareDurable(channel, queue)
	publishConfirmed(connection, queue, bare("held"), bare("purged"), bare("purged"))
	held, ok, err := channel.Get(queue, acking)
	succeed(err)
	equal("get finds a message", true, ok)
	equal("purged: ready ones only", 2, must(channel.QueuePurge(queue, false)))
	succeed(held.Reject(true))
	// The next call is on another channel: wait until the message is back.
	must(look(channel, queue))
	deleteIf := func(ifUnused, ifEmpty bool) func(*amqp.Channel) error {
		return func(refusing *amqp.Channel) error {
			_, err := refusing.QueueDelete(queue, ifUnused, ifEmpty, false)
			return err
		}
	}
	precondition := fmt.Sprintf("PRECONDITION_FAILED - queue '%s' in vhost '%s' ", queue, uri.Vhost)
	refused(connection, amqp.PreconditionFailed, precondition+"not empty", deleteIf(false, true))

	cancelled := channel.NotifyCancel(make(chan string, 1))
	inbox := consume(channel, queue, acking)
	again := inbox.take()
	equal("held message", all("held", true), all(string(again.Body), again.Redelivered))
	refused(connection, amqp.PreconditionFailed, precondition+"in use", deleteIf(true, false))
	publishConfirmed(other, queue, bare("unacked too"))
	inbox.take()
	deleting := open(other)
	equal("deleted: ready ones only", 0, must(deleting.QueueDelete(queue, false, false, false)))
	tag, _ := receive("a cancel notification", cancelled)
	equal("cancelled consumer", inbox.tag, tag)
	_, goesOn := receive("the consumer's end", inbox.deliveries)
	equal("deliveries go on", false, goesOn)
	equal("deleted once more", 0, must(deleting.QueueDelete(queue, false, false, false)))

	must(channel.QueueDeclare(autoDelete, false, true, true, false, nil))
	succeed(channel.Cancel(consume(channel, autoDelete, acking).tag, false))
	refused(connection, amqp.NotFound, noQueue(autoDelete), func(refusing *amqp.Channel) error {
		_, err := look(refusing, autoDelete)
		return err
	})
	succeed(other.Close())
	succeed(connection.Close())
}
