// Publisher confirms; contents and properties that must come back as they went.

package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func confirms(names *names) {
	queue, short := names.queue("confirmed"), names.queue("short")
	nowhere := queue + ".none"
	connection := connect()
	channel := open(connection)
	declareDurable(channel, queue)
	must(channel.QueueDeclare(short, true, false, false, false, amqp.Table{
		amqp.QueueMaxLenArg: 1, amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish,
	}))
	succeed(channel.Confirm(false))

	equal("single", true, confirmed(channel, queue, false, bare("single")))
	equal("messages after one confirm", 1, readyCount(connection, queue))

	limit, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	batch := make([]*amqp.DeferredConfirmation, 1000)
	for n := range batch {
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, "batch %d", n)}
		batch[n] = must(channel.PublishWithDeferredConfirmWithContext(limit, "", queue, false, false, message))
	}
	for n, confirm := range batch {
		equal("delivery tag", uint64(n+2), confirm.DeliveryTag)
		equal("confirm in the batch", true, must(confirm.WaitContext(limit)))
	}
	equal("messages after the batch", 1+1000, must(channel.QueuePurge(queue, false)))

	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	lost := amqp.Publishing{ContentType: "text/plain", DeliveryMode: amqp.Persistent, Body: []byte("lost")}
	equal("ack of an unroutable message", true, confirmed(channel, nowhere, true, lost))
	// The library handed the return over before it read the ack.
	equal("returns before the ack", 1, len(returns))
	equal("returned message", amqp.Return{
		ReplyCode: amqp.NoRoute, ReplyText: "NO_ROUTE", RoutingKey: nowhere,
		ContentType: "text/plain", DeliveryMode: amqp.Persistent, Body: []byte("lost"),
	}, <-returns)
	equal("ack of an unroutable message, not mandatory", true, confirmed(channel, nowhere, false, lost))
	equal("returns of a message that is not mandatory", 0, len(returns))

	equal("fits", true, confirmed(channel, short, false, bare("fits")))
	equal("ack from a full queue", false, confirmed(channel, short, false, bare("one too many")))
	succeed(connection.Close())
}

// One header of each kind, so that none changes its type on the way.
var headers = amqp.Table{
	"text":    "snowman \u2603",
	"flag":    true,
	"i8":      int8(-7),
	"u8":      byte(200),
	"i16":     int16(-700),
	"u16":     uint16(60_000),
	"i32":     int32(-70_000),
	"u32":     uint32(4_000_000_000),
	"i64":     int64(-1 << 40),
	"float":   float32(0.5),
	"double":  1.1,
	"decimal": amqp.Decimal{Scale: 2, Value: 314},
	"bytes":   []byte{0, 255},
	"time":    time.Unix(1_709_208_000, 0),
	"nothing": nil,
	"table":   amqp.Table{"list": []any{int32(1), "two", false, amqp.Table{"deep": int32(3)}}},
}

// properties are those of a delivery that a publisher can set.
func properties(delivery amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{
		Headers:         delivery.Headers,
		ContentType:     delivery.ContentType,
		ContentEncoding: delivery.ContentEncoding,
		DeliveryMode:    delivery.DeliveryMode,
		Priority:        delivery.Priority,
		CorrelationId:   delivery.CorrelationId,
		ReplyTo:         delivery.ReplyTo,
		Expiration:      delivery.Expiration,
		MessageId:       delivery.MessageId,
		Timestamp:       delivery.Timestamp,
		Type:            delivery.Type,
		UserId:          delivery.UserId,
		AppId:           delivery.AppId,
	}
}

func messages(names *names) {
	queue := names.queue("messages")
	connection := connect()
	channel := open(connection)
	declareDurable(channel, queue)
	inbox := consume(channel, queue, acking)
	everything := amqp.Publishing{
		Headers:         headers,
		ContentType:     "application/octet-stream",
		ContentEncoding: "identity",
		DeliveryMode:    amqp.Persistent,
		Priority:        3,
		CorrelationId:   "correlation",
		ReplyTo:         "reply",
		Expiration:      "60000",
		MessageId:       "message",
		Timestamp:       time.Unix(1_700_000_000, 0),
		Type:            "type",
		UserId:          uri.Username,
		AppId:           "app",
	}
	large := make([]byte, 1024*1024)
	for i := range large {
		// A period that is no power of two, so that swapped or repeated frames show.
		large[i] = byte(i % 251)
	}
	for _, sent := range []struct {
		what       string
		body       []byte
		properties amqp.Publishing
	}{
		{"1 MiB body", large, everything},
		{"empty body", nil, everything},
		{"no properties", []byte("bare"), amqp.Publishing{}},
	} {
		message := sent.properties
		message.Body = sent.body
		publish(channel, "", queue, message)
		got := inbox.take()
		equal("bytes of "+sent.what, len(sent.body), len(got.Body))
		equal(sent.what+" unchanged", true, bytes.Equal(sent.body, got.Body))
		equal("properties with "+sent.what, sent.properties, properties(got))
		ack(got)
	}
	succeed(channel.Cancel(inbox.tag, false))

	publishConfirmed(connection, queue, bare("one"), bare("two"), bare("three"))
	for _, expected := range [][]any{{"one", false, 2}, {"one", true, 2}, {"two", false, 1}, {"three", false, 0}} {
		got, ok, err := channel.Get(queue, acking)
		succeed(err)
		equal("get finds a message", true, ok)
		equal("get: body, redelivered, left over", expected, all(string(got.Body), got.Redelivered, int(got.MessageCount)))
		equal("get: exchange, routing key", all("", queue), all(got.Exchange, got.RoutingKey))
		if expected[0] == "one" && expected[1] == false {
			succeed(got.Reject(true))
		} else {
			ack(got)
		}
	}
	_, ok, err := channel.Get(queue, acking)
	succeed(err)
	equal("get from an empty queue", false, ok)
	succeed(connection.Close())
}
