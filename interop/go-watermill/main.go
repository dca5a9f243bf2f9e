// Watermill with watermill-amqp: durable queues and pub/sub, acks and nacks, a router with retries, a lost broker.

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

const waitLimit = 20 * time.Second

var (
	url     = os.Getenv("AMQP_URL")
	run     = "interop." + suffix()
	answers = bufio.NewScanner(os.Stdin)
	logger  = watermill.NopLogger{}
)

// inapplicable is what a feature gives when the broker cannot be asked it.
type inapplicable string

func (why inapplicable) Error() string { return string(why) }

func suffix() string {
	random := make([]byte, 4)
	rand.Read(random)
	return hex.EncodeToString(random)
}

// control has the driver do something to the broker, and waits until it is done.
func control(command string) error {
	fmt.Println("do", command)
	answers.Scan()
	if answer := answers.Text(); answer != "done" {
		return inapplicable(strings.TrimPrefix(answer, "n/a "))
	}
	return nil
}

func take(messages <-chan *message.Message) (*message.Message, error) {
	select {
	case got, open := <-messages:
		if !open {
			return nil, errors.New("expected a message, got the subscription's end")
		}
		return got, nil
	case <-time.After(waitLimit):
		return nil, fmt.Errorf("expected a message within %v, got nothing", waitLimit)
	}
}

func text(body string) *message.Message { return message.NewMessage(watermill.NewUUID(), []byte(body)) }

// open gives a publisher and a subscriber of one configuration; confirms are on.
func open(config amqp.Config) (*amqp.Publisher, *amqp.Subscriber, error) {
	config.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(config, logger)
	if err != nil {
		return nil, nil, err
	}
	subscriber, err := amqp.NewSubscriber(config, logger)
	return publisher, subscriber, err
}

func queue() error {
	publisher, subscriber, err := open(amqp.NewDurableQueueConfig(url))
	if err != nil {
		return err
	}
	defer publisher.Close()
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(context.Background(), run+".queue")
	if err != nil {
		return err
	}
	for n := range 20 {
		sent := text(fmt.Sprint(n))
		sent.Metadata.Set("number", fmt.Sprint(n))
		if err := publisher.Publish(run+".queue", sent); err != nil {
			return err
		}
	}
	for n := range 20 {
		got, err := take(messages)
		if err != nil {
			return err
		}
		if string(got.Payload) != fmt.Sprint(n) || got.Metadata.Get("number") != fmt.Sprint(n) {
			return fmt.Errorf("expected %d, got %s with %v", n, got.Payload, got.Metadata)
		}
		if n == 3 {
			// It comes again at once.
			got.Nack()
			if got, err = take(messages); err != nil || string(got.Payload) != "3" {
				return fmt.Errorf("expected 3 again, got %v, %v", got, err)
			}
		}
		got.Ack()
	}
	return nil
}

func pubSub() error {
	var streams []<-chan *message.Message
	var publisher *amqp.Publisher
	for _, name := range []string{"one", "two"} {
		made, subscriber, err := open(amqp.NewDurablePubSubConfig(url, amqp.GenerateQueueNameTopicNameWithSuffix(name)))
		if err != nil {
			return err
		}
		publisher = made
		defer made.Close()
		defer subscriber.Close()
		messages, err := subscriber.Subscribe(context.Background(), run+".topic")
		if err != nil {
			return err
		}
		streams = append(streams, messages)
	}
	if err := publisher.Publish(run+".topic", text("to all")); err != nil {
		return err
	}
	for _, messages := range streams {
		got, err := take(messages)
		if err != nil {
			return err
		}
		got.Ack()
	}
	return nil
}

func router() error {
	publisher, subscriber, err := open(amqp.NewDurableQueueConfig(url))
	if err != nil {
		return err
	}
	defer publisher.Close()
	routing, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Second}, logger)
	if err != nil {
		return err
	}
	tries := 0
	routing.AddMiddleware(middleware.Retry{MaxRetries: 3, InitialInterval: 50 * time.Millisecond}.Middleware)
	routing.AddHandler("double", run+".in", subscriber, run+".out", publisher, func(got *message.Message) ([]*message.Message, error) {
		if tries++; tries < 3 {
			return nil, errors.New("once more")
		}
		return message.Messages{text(string(got.Payload) + string(got.Payload))}, nil
	})
	go routing.Run(context.Background())
	<-routing.Running()
	defer routing.Close()
	_, reader, err := open(amqp.NewDurableQueueConfig(url))
	if err != nil {
		return err
	}
	defer reader.Close()
	results, err := reader.Subscribe(context.Background(), run+".out")
	if err != nil {
		return err
	}
	if err := publisher.Publish(run+".in", text("ab")); err != nil {
		return err
	}
	got, err := take(results)
	if err != nil || string(got.Payload) != "abab" || tries != 3 {
		return fmt.Errorf("expected abab after 3 tries, got %v after %d, %v", got, tries, err)
	}
	got.Ack()
	return nil
}

func lostBroker(command string) func() error {
	return func() error {
		topic := run + "." + command
		config := amqp.NewDurableQueueConfig(url)
		config.Connection.Reconnect = amqp.DefaultReconnectConfig()
		config.Connection.Reconnect.BackoffInitialInterval = 200 * time.Millisecond
		publisher, subscriber, err := open(config)
		if err != nil {
			return err
		}
		defer publisher.Close()
		defer subscriber.Close()
		messages, err := subscriber.Subscribe(context.Background(), topic)
		if err != nil {
			return err
		}
		var lock sync.Mutex
		var seen []string
		go func() {
			for got := range messages {
				lock.Lock()
				seen = append(seen, string(got.Payload))
				lock.Unlock()
				got.Ack()
			}
		}()
		if err := publisher.Publish(topic, text("before")); err != nil {
			return err
		}
		if err := control(command); err != nil {
			return err
		}
		deadline := time.Now().Add(waitLimit)
		for err := publisher.Publish(topic, text("after")); err != nil; err = publisher.Publish(topic, text("after")) {
			if time.Now().After(deadline) {
				return err
			}
			time.Sleep(300 * time.Millisecond)
		}
		for time.Now().Before(deadline) {
			lock.Lock()
			both := slices.Contains(seen, "before") && slices.Contains(seen, "after")
			lock.Unlock()
			if both {
				return nil
			}
			time.Sleep(20 * time.Millisecond)
		}
		return fmt.Errorf("expected both messages within %v, got %v", waitLimit, seen)
	}
}

func cleanUp() error {
	connection, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for _, name := range []string{"queue", "topic_one", "topic_two", "in", "out", "restart", "kill"} {
		if _, err := channel.QueueDelete(run+"."+name, false, false, false); err != nil {
			return err
		}
	}
	return channel.ExchangeDelete(run+".topic", false, false)
}

func main() {
	failed := 0
	for _, feature := range []struct {
		name string
		run  func() error
	}{
		{"queue", queue}, {"pub-sub", pubSub}, {"router-retry", router},
		{"restart", lostBroker("restart")}, {"kill", lostBroker("kill")}, {"clean-up", cleanUp},
	} {
		err := feature.run()
		var why inapplicable
		switch {
		case errors.As(err, &why):
			fmt.Printf("n/a %s: %v\n", feature.name, why)
		case err != nil:
			failed = 1
			fmt.Printf("fail %s: %s\n", feature.name, strings.ReplaceAll(err.Error(), "\n", " "))
		default:
			fmt.Println("ok", feature.name)
		}
	}
	os.Exit(failed)
}
