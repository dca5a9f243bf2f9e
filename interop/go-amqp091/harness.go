// What the patterns stand on: connections, checks with messages, time limits, clean-up.

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	patternLimit = 40 * time.Second
	waitLimit    = 10 * time.Second
)

var (
	uri = parseURL()
	run = "interop.amqp091." + randomHex()
)

func parseURL() amqp.URI {
	text, set := os.LookupEnv("AMQP_URL")
	if !set {
		text = "amqp://guest:guest@127.0.0.1:5672/"
	}
	parsed, err := amqp.ParseURI(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "AMQP_URL:", err)
		os.Exit(2)
	}
	return parsed
}

func randomHex() string {
	random := make([]byte, 4)
	rand.Read(random)
	return hex.EncodeToString(random)
}

// failure is what a check panics with: patterns then read as plain steps, and attempt catches it.
type failure string

func fail(format string, arguments ...any) {
	panic(failure(fmt.Sprintf(format, arguments...)))
}

func equal(what string, expected, got any) {
	if !reflect.DeepEqual(expected, got) {
		fail("%s: expected %v, got %v", what, expected, got)
	}
}

// all makes several values comparable in one check.
func all(values ...any) []any { return values }

func succeed(err error) {
	if err != nil {
		fail("expected no error, got %v", err)
	}
}

func must[T any](value T, err error) T {
	succeed(err)
	return value
}

// attempt runs a step within the time limit and gives what went wrong and why it could not be asked, or "".
func attempt(step func()) (wrong, unable string) {
	outcome := make(chan [2]string, 1)
	go func() {
		defer func() {
			switch panicked := recover().(type) {
			case nil:
				outcome <- [2]string{}
			case failure:
				outcome <- [2]string{string(panicked)}
			case notApplicable:
				outcome <- [2]string{"", string(panicked)}
			default:
				panic(panicked)
			}
		}()
		step()
	}()
	select {
	case ended := <-outcome:
		return ended[0], ended[1]
	case <-time.After(patternLimit):
		return fmt.Sprintf("expected an end within %v, got none", patternLimit), ""
	}
}

func connect() *amqp.Connection { return must(dial(uri)) }

func dial(to amqp.URI) (*amqp.Connection, error) {
	return amqp.DialConfig(to.String(), amqp.Config{Vhost: to.Vhost, Dial: amqp.DefaultDial(waitLimit)})
}

func open(connection *amqp.Connection) *amqp.Channel { return must(connection.Channel()) }

// names gives names that no other run uses, and remembers what has to be deleted at the end.
type names struct {
	prefix            string
	queues, exchanges []string
}

func (n *names) queue(role string) string {
	n.queues = append(n.queues, n.prefix+role)
	return n.prefix + role
}

func (n *names) exchange(role string) string {
	n.exchanges = append(n.exchanges, n.prefix+role)
	return n.prefix + role
}

func (n *names) deleteAll() {
	connection := connect()
	channel := open(connection)
	for _, queue := range n.queues {
		must(channel.QueueDelete(queue, false, false, false))
	}
	for _, exchange := range n.exchanges {
		succeed(channel.ExchangeDelete(exchange, false, false))
	}
	succeed(connection.Close())
}

func declareDurable(channel *amqp.Channel, queue string) amqp.Queue {
	return must(channel.QueueDeclare(queue, true, false, false, false, nil))
}

// declareExclusive gives the name that the server chose.
func declareExclusive(channel *amqp.Channel) string {
	return must(channel.QueueDeclare("", false, false, true, false, nil)).Name
}

func look(channel *amqp.Channel, queue string) (amqp.Queue, error) {
	return channel.QueueDeclarePassive(queue, false, false, false, false, nil)
}

func prefetch(channel *amqp.Channel, count int) { succeed(channel.Qos(count, 0, false)) }

// inbox has the deliveries of one consumer, in order of arrival.
type inbox struct {
	channel    *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
}

const (
	acking  = false
	autoAck = true
)

func consume(channel *amqp.Channel, queue string, ack bool) inbox {
	tag := "consumer-" + randomHex()
	return inbox{channel, tag, must(channel.Consume(queue, tag, ack, false, false, false, nil))}
}

func (i inbox) take() amqp.Delivery {
	delivery, open := receive("a delivery", i.deliveries)
	if !open {
		fail("expected a delivery, got the consumer's end")
	}
	equal("consumer tag", i.tag, delivery.ConsumerTag)
	return delivery
}

func (i inbox) empty() bool {
	select {
	case <-i.deliveries:
		return false
	default:
		return true
	}
}

// receive waits for a value; open is false when the channel was closed instead.
func receive[T any](what string, from <-chan T) (value T, open bool) {
	select {
	case value, open = <-from:
	case <-time.After(waitLimit):
		fail("expected %s within %v, got nothing", what, waitLimit)
	}
	return value, open
}

func ack(delivery amqp.Delivery) { succeed(delivery.Ack(false)) }

// bare is a message that has a body and no properties.
func bare(body string) amqp.Publishing { return amqp.Publishing{Body: []byte(body)} }

func publish(channel *amqp.Channel, exchange, key string, message amqp.Publishing) {
	succeed(channel.PublishWithContext(context.Background(), exchange, key, false, false, message))
}

// confirmed publishes on a channel in confirm mode and tells whether the broker acked.
func confirmed(channel *amqp.Channel, key string, mandatory bool, message amqp.Publishing) bool {
	limit, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	confirm := must(channel.PublishWithDeferredConfirmWithContext(limit, "", key, mandatory, false, message))
	return must(confirm.WaitContext(limit))
}

// publishConfirmed returns once the broker has the messages, so that counts are exact afterwards.
func publishConfirmed(connection *amqp.Connection, queue string, messages ...amqp.Publishing) {
	channel := open(connection)
	returned := channel.NotifyReturn(make(chan amqp.Return, len(messages)))
	succeed(channel.Confirm(false))
	for _, message := range messages {
		equal("confirm", true, confirmed(channel, queue, true, message))
	}
	equal("returned messages", 0, len(returned))
	succeed(channel.Close())
}

func readyCount(connection *amqp.Connection, queue string) int {
	channel := open(connection)
	declared := must(look(channel, queue))
	succeed(channel.Close())
	return declared.Messages
}

func equalError(code int, reason string, err error) {
	var got *amqp.Error
	if !errors.As(err, &got) {
		fail("expected %d %s, got %v", code, reason, err)
	}
	equal("error", all(code, reason), all(got.Code, got.Reason))
}

// refused expects that the step closes its channel, and only that, with this code and text.
func refused(connection *amqp.Connection, code int, reason string, step func(*amqp.Channel) error) {
	channel := open(connection)
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	err := step(channel)
	closing, _ := receive(fmt.Sprintf("channel error %d %s", code, reason), closed)
	equalError(code, reason, closing)
	// Calls that have no reply know nothing of it.
	if err != nil {
		equalError(code, reason, err)
	}
}
