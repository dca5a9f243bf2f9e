// Work queue, publish/subscribe, routing, topics, RPC.

package main

import (
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func workQueue(names *names) {
	queue := names.queue("tasks")
	leaving, staying := connect(), connect()
	channel := open(leaving)
	equal("declare-ok", amqp.Queue{Name: queue}, declareDurable(channel, queue))
	tasks := make([]amqp.Publishing, 10)
	for n := range tasks {
		body := fmt.Appendf(nil, "task %d", n)
		tasks[n] = amqp.Publishing{ContentType: "text/plain", DeliveryMode: amqp.Persistent, Body: body}
	}
	publishConfirmed(leaving, queue, tasks...)

	prefetch(channel, 1)
	left := consume(channel, queue, acking)
	first := left.take()
	equal("first task", all("task 0", uint64(1), false, "", queue),
		all(string(first.Body), first.DeliveryTag, first.Redelivered, first.Exchange, first.RoutingKey))
	equal("first task: mode, type", all(amqp.Persistent, "text/plain"), all(first.DeliveryMode, first.ContentType))

	// The first consumer holds its one message all the while, so the order at the second is exact.
	channel = open(staying)
	prefetch(channel, 1)
	stayed := consume(channel, queue, acking)
	for n := 1; n < 10; n++ {
		task := stayed.take()
		equal("task", all(fmt.Sprint("task ", n), false), all(string(task.Body), task.Redelivered))
		equal("nothing behind prefetch 1", true, stayed.empty())
		switch n {
		case 1:
			equal("ready behind two prefetches of 1", 8, readyCount(staying, queue))
		case 5:
			succeed(task.Nack(false, true))
			task = stayed.take()
			equal("after nack", all("task 5", true), all(string(task.Body), task.Redelivered))
		}
		ack(task)
	}

	equal("ready tasks", 0, readyCount(leaving, queue))
	equal("no second task at prefetch 1", true, left.empty())
	succeed(leaving.Close())
	task := stayed.take()
	equal("after its consumer left", all("task 0", true), all(string(task.Body), task.Redelivered))
	ack(task)
	succeed(staying.Close())

	connection := connect()
	equal("left over", amqp.Queue{Name: queue}, declareDurable(open(connection), queue))
	succeed(connection.Close())
}

func subscribe(connection *amqp.Connection, exchange string) (string, inbox) {
	channel := open(connection)
	queue := declareExclusive(channel)
	equal("prefix of a server's name", true, strings.HasPrefix(queue, "amq.gen-"))
	succeed(channel.QueueBind(queue, "", exchange, false, nil))
	return queue, consume(channel, queue, autoAck)
}

func publishSubscribe(names *names) {
	exchange := names.exchange("logs")
	publisher, first, second := connect(), connect(), connect()
	channel := open(publisher)
	succeed(channel.ExchangeDeclare(exchange, amqp.ExchangeFanout, false, false, false, false, nil))
	firstQueue, firstInbox := subscribe(first, exchange)
	secondQueue, secondInbox := subscribe(second, exchange)
	equal("two different names", true, firstQueue != secondQueue)

	for n := range 5 {
		publish(channel, exchange, "any key", bare(fmt.Sprint("log ", n)))
	}
	for _, inbox := range []inbox{firstInbox, secondInbox} {
		for n := range 5 {
			log := inbox.take()
			equal("log", all(fmt.Sprint("log ", n), exchange, "any key", false),
				all(string(log.Body), log.Exchange, log.RoutingKey, log.Redelivered))
		}
	}

	succeed(secondInbox.channel.QueueUnbind(secondQueue, "", exchange, nil))
	publish(channel, exchange, "", bare("for the bound one"))
	publish(channel, "", secondQueue, bare("end"))
	equal("bound subscriber", "for the bound one", string(firstInbox.take().Body))
	equal("unbound subscriber", "end", string(secondInbox.take().Body))

	lookAtFirst := func(other *amqp.Channel) error {
		_, err := look(other, firstQueue)
		return err
	}
	refused(publisher, amqp.ResourceLocked, fmt.Sprintf(
		"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '%s' in vhost '%s'. "+
			"It could be originally declared on another connection or the exclusive property value "+
			"does not match that of the original declaration.", firstQueue, uri.Vhost), lookAtFirst)
	succeed(first.Close())
	refused(publisher, amqp.NotFound, noQueue(firstQueue), lookAtFirst)
	succeed(second.Close())
	succeed(publisher.Close())
}

func noQueue(queue string) string {
	return fmt.Sprintf("NOT_FOUND - no queue '%s' in vhost '%s'", queue, uri.Vhost)
}

// route is one queue: its role, its binding keys, and the routing keys that it must get.
type route struct {
	role        string
	bindingKeys []string
	expected    []string
}

// checkRoutes publishes one message per key; each queue must get the expected ones, in order, and no other.
func checkRoutes(names *names, kind string, keys []string, routes []route) {
	exchange := names.exchange(kind)
	connection := connect()
	channel := open(connection)
	succeed(channel.ExchangeDeclare(exchange, kind, true, false, false, false, nil))
	inboxes := make([]inbox, len(routes))
	queues := make([]string, len(routes))
	for i, route := range routes {
		queues[i] = declareExclusive(channel)
		for _, key := range route.bindingKeys {
			succeed(channel.QueueBind(queues[i], key, exchange, false, nil))
		}
		inboxes[i] = consume(channel, queues[i], autoAck)
	}
	for _, key := range keys {
		publish(channel, exchange, key, bare(key))
	}
	for i, route := range routes {
		// Sent last, so what comes before it is all that there is.
		publish(channel, "", queues[i], bare("end"))
		var got []string
		for message := inboxes[i].take(); string(message.Body) != "end"; message = inboxes[i].take() {
			equal("routing key", string(message.Body), message.RoutingKey)
			got = append(got, message.RoutingKey)
		}
		equal("routing keys at queue '"+route.role+"'", route.expected, got)
	}
	succeed(connection.Close())
}

func routing(names *names) {
	checkRoutes(names, amqp.ExchangeDirect, []string{"info", "debug", "error", "warning", "error"}, []route{
		{"all", []string{"info", "warning", "error"}, []string{"info", "error", "warning", "error"}},
		// "error" twice: the same binding again is no second binding.
		{"errors", []string{"error", "error"}, []string{"error", "error"}},
	})
}

func topics(names *names) {
	keys := []string{
		"quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox", "lazy.pink.rabbit",
		"quick.brown.fox", "orange", "quick.orange.new.rabbit", "lazy.orange.new.rabbit", "lazy", "quick.rabbit", "",
	}
	lazy := []string{
		"quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox", "lazy.pink.rabbit", "lazy.orange.new.rabbit", "lazy",
	}
	checkRoutes(names, amqp.ExchangeTopic, keys, []route{
		{"orange", []string{"*.orange.*"}, []string{"quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"}},
		{"lazy", []string{"*.*.rabbit", "lazy.#"}, lazy},
		{"one", []string{"*"}, []string{"orange", "lazy"}},
		{"ends", []string{"quick.#.rabbit"}, []string{"quick.orange.rabbit", "quick.orange.new.rabbit", "quick.rabbit"}},
		{"all", []string{"#"}, keys},
	})
}

// serveOne answers the next request with its number squared; gives the address it answered to.
func serveOne(requests inbox) string {
	request := requests.take()
	number := must(strconv.Atoi(string(request.Body)))
	publish(requests.channel, "", request.ReplyTo, amqp.Publishing{
		CorrelationId: request.CorrelationId, Body: strconv.AppendInt(nil, int64(number*number), 10),
	})
	ack(request)
	return request.ReplyTo
}

func rpc(names *names) {
	const direct = "amq.rabbitmq.reply-to"
	queue := names.queue("requests")
	server, client := connect(), connect()
	serving := open(server)
	declareDurable(serving, queue)
	prefetch(serving, 1)
	requests := consume(serving, queue, acking)
	calling := open(client)
	call := func(n int, replyTo string) {
		publish(calling, "", queue, amqp.Publishing{
			ReplyTo: replyTo, CorrelationId: fmt.Sprint("call ", n), Body: []byte(strconv.Itoa(n)),
		})
	}

	callback := declareExclusive(calling)
	replies := consume(calling, callback, autoAck)
	for n := range 5 {
		call(n, callback)
	}
	for range 5 {
		equal("reply_to", callback, serveOne(requests))
	}
	for n := range 5 {
		reply := replies.take()
		equal("reply", all(strconv.Itoa(n*n), fmt.Sprint("call ", n)), all(string(reply.Body), reply.CorrelationId))
	}

	replies = consume(calling, direct, autoAck)
	for n := 5; n < 8; n++ {
		call(n, direct)
	}
	for range 3 {
		equal("rewritten reply_to", true, strings.HasPrefix(serveOne(requests), direct+"."))
	}
	for n := 5; n < 8; n++ {
		reply := replies.take()
		equal("direct reply", all(strconv.Itoa(n*n), fmt.Sprint("call ", n), "", false),
			all(string(reply.Body), reply.CorrelationId, reply.Exchange, reply.Redelivered))
	}

	refused(client, amqp.PreconditionFailed, "PRECONDITION_FAILED - reply consumer cannot acknowledge",
		func(other *amqp.Channel) error {
			_, err := other.Consume(direct, "", acking, false, false, false, nil)
			return err
		})
	refused(client, amqp.PreconditionFailed, "PRECONDITION_FAILED - fast reply consumer does not exist",
		func(other *amqp.Channel) error {
			return other.Publish("", queue, false, false, amqp.Publishing{ReplyTo: direct, Body: []byte("1")})
		})
	succeed(server.Close())
	succeed(client.Close())
}
