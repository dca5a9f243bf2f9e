// The features of ../FEATURES.md that the patterns do not have.

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const shutdown = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"

func dialWith(heartbeat time.Duration, mechanism amqp.Authentication) *amqp.Connection {
	return must(amqp.DialConfig(uri.String(), amqp.Config{Vhost: uri.Vhost, Heartbeat: heartbeat, SASL: []amqp.Authentication{mechanism},
		Properties: amqp.Table{"connection_name": "interop"}, Dial: amqp.DefaultDial(waitLimit)}))
}

func plain() amqp.Authentication { return uri.PlainAuth() }

func persistent(body string) amqp.Publishing {
	return amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent}
}

func connecting(*names) {
	for _, mechanism := range []amqp.Authentication{uri.PlainAuth(), uri.AMQPlainAuth()} {
		connection := dialWith(0, mechanism)
		equal("product", "RabbitMQ", connection.Properties["product"])
		succeed(open(connection).Close())
		succeed(connection.Close())
		equal("closed", true, connection.IsClosed())
	}
	wrong := uri
	wrong.Password = "wrong"
	_, err := dial(wrong)
	equalError(amqp.AccessRefused, "username or password not allowed", err)
	wrong = uri
	wrong.Vhost = "nowhere"
	_, err = dial(wrong)
	equalError(amqp.NotAllowed, "NOT_ALLOWED - vhost nowhere not found", err)
}

func declare(names *names) {
	connection := connect()
	channel := open(connection)
	for _, kind := range []string{"direct", "fanout", "topic", "headers"} {
		exchange := names.exchange(kind)
		for range 2 {
			succeed(channel.ExchangeDeclare(exchange, kind, kind != "topic", kind == "fanout", kind == "headers", false, nil))
		}
		succeed(channel.ExchangeDeclarePassive(exchange, kind, true, false, false, false, nil))
	}
	queue, arguments := names.queue("durable"), amqp.Table{"x-max-length": 100, "x-message-ttl": 60000, "x-dead-letter-exchange": "", "x-max-priority": 5}
	for range 2 {
		declared := must(channel.QueueDeclare(queue, true, false, false, false, arguments))
		equal("declare-ok", amqp.Queue{Name: queue}, declared)
	}
	counts := func(n int) {
		eventually(fmt.Sprintf("%d messages", n), func() bool { return must(look(channel, queue)).Messages == n })
	}
	source, target := names.prefix+"direct", names.prefix+"fanout"
	note := amqp.Table{"note": "any"}
	succeed(channel.ExchangeBind(target, "k", source, false, note))
	succeed(channel.QueueBind(queue, "", target, false, nil))
	publish(channel, source, "k", bare("through two exchanges"))
	publish(channel, source, "other", bare("nowhere"))
	counts(1)
	succeed(channel.ExchangeUnbind(target, "k", source, false, note))
	publish(channel, source, "k", bare("unbound"))
	publish(channel, target, "", bare("second"))
	counts(2)
	byHeaders, match := names.exchange("by-headers"), amqp.Table{"x-match": "all", "shape": "round", "size": 3}
	succeed(channel.ExchangeDeclare(byHeaders, "headers", true, false, false, false, nil))
	succeed(channel.QueueBind(queue, "", byHeaders, false, match))
	publish(channel, byHeaders, "", amqp.Publishing{Headers: amqp.Table{"shape": "round", "size": 4}})
	publish(channel, byHeaders, "", amqp.Publishing{Headers: amqp.Table{"shape": "round", "size": 3, "more": true}})
	counts(3)
	succeed(channel.QueueUnbind(queue, "", byHeaders, match))
	equal("purged", 3, must(channel.QueuePurge(queue, false)))
	publish(channel, "", queue, bare("last"))
	counts(1)
	equal("deleted with it", 1, must(channel.QueueDelete(queue, false, false, false)))
	equal("deleted again", 0, must(channel.QueueDelete(queue, false, false, false)))
	succeed(connection.Close())
}

func roundTrip(names *names) {
	connection := connect()
	channel := open(connection)
	queue := names.queue("properties")
	declareDurable(channel, queue)
	every := amqp.Publishing{
		Headers: amqp.Table{
			"int8": int8(-100), "byte": byte(200), "int16": int16(-30000), "int32": int32(-2_000_000_000), "int64": int64(1 << 40),
			"float32": float32(0.5), "float64": 0.1, "decimal": amqp.Decimal{Scale: 2, Value: 12345}, "yes": true, "no": false, "text": "text ✓",
			"empty": "", "bytes": []byte{255, 0, 1}, "time": time.Unix(1709208000, 0), "void": nil,
			"table": amqp.Table{"inner": amqp.Table{"deep": int32(1)}, "empty": amqp.Table{}},
			"array": []any{int32(1), "two", []any{0.5, nil}, amqp.Table{"four": true}},
		},
		ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 3, CorrelationId: "corr", ReplyTo: "reply", Expiration: "60000",
		MessageId: "id", Timestamp: time.Unix(1709209815, 0), Type: "kind", UserId: "guest", AppId: "app", Body: []byte("all"),
	}
	publish(channel, "", queue, every)
	publish(channel, "", queue, bare("none"))
	for _, expected := range []amqp.Publishing{every, {Body: []byte("none")}} {
		got := get(channel, queue)
		equal("properties", expected, amqp.Publishing{Headers: got.Headers, ContentType: got.ContentType, ContentEncoding: got.ContentEncoding,
			DeliveryMode: got.DeliveryMode, Priority: got.Priority, CorrelationId: got.CorrelationId, ReplyTo: got.ReplyTo, Expiration: got.Expiration,
			MessageId: got.MessageId, Timestamp: got.Timestamp, Type: got.Type, UserId: got.UserId, AppId: got.AppId, Body: got.Body})
	}
	succeed(connection.Close())
}

func eventually(what string, condition func() bool) {
	for deadline := time.Now().Add(waitLimit); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			fail("expected %s within %v, got nothing", what, waitLimit)
		}
	}
}

func get(channel *amqp.Channel, queue string) (message amqp.Delivery) {
	eventually("a message", func() bool {
		got, ok, err := channel.Get(queue, acking)
		succeed(err)
		message = got
		return ok
	})
	return message
}

func consuming(names *names) {
	connection := connect()
	channel := open(connection)
	queue := names.queue("consume")
	declareDurable(channel, queue)
	for n := range 5 {
		publish(channel, "", queue, bare(fmt.Sprint(n)))
	}
	prefetch(channel, 2)
	inbox := consume(channel, queue, acking)
	seen := func(delivery amqp.Delivery) []any { return all(string(delivery.Body), delivery.Redelivered) }
	first, second := inbox.take(), inbox.take()
	equal("first two", all(all("0", false), all("1", false)), all(seen(first), seen(second)))
	time.Sleep(200 * time.Millisecond)
	equal("no third", true, inbox.empty())
	ack(first)
	equal("after an ack", all("2", false), seen(inbox.take()))
	succeed(second.Nack(false, true))
	again := inbox.take()
	equal("after nack with requeue", all("1", true), seen(again))
	succeed(again.Reject(true))
	again = inbox.take()
	equal("after reject with requeue", all("1", true), seen(again))
	succeed(again.Reject(false))
	fourth := inbox.take()
	equal("after reject", "3", string(fourth.Body))
	succeed(fourth.Nack(false, false))
	fifth := inbox.take()
	succeed(fifth.Ack(true))
	succeed(channel.Cancel(inbox.tag, false))
	publish(channel, "", queue, bare("after cancel"))
	eventually("the message after cancel", func() bool { return must(look(channel, queue)).Messages == 1 })
	succeed(connection.Close())
}

func getting(names *names) {
	connection := connect()
	channel := open(connection)
	queue := names.queue("get")
	declareDurable(channel, queue)
	_, found, err := channel.Get(queue, acking)
	succeed(err)
	equal("get from an empty queue", false, found)
	publishConfirmed(connection, queue, bare("a"), bare("b"))
	message := get(channel, queue)
	equal("get", all("a", false, uint32(1)), all(string(message.Body), message.Redelivered, message.MessageCount))
	succeed(message.Nack(false, true))
	message = get(channel, queue)
	equal("get again", all("a", true), all(string(message.Body), message.Redelivered))
	ack(message)
	succeed(connection.Close())
}

func transactions(names *names) {
	connection, other := connect(), connect()
	channel := open(connection)
	queue := names.queue("tx")
	declareDurable(channel, queue)
	succeed(channel.Tx())
	publish(channel, "", queue, persistent("1"))
	publish(channel, "", queue, persistent("2"))
	equal("before commit", 0, readyCount(other, queue))
	succeed(channel.TxCommit())
	equal("after commit", 2, readyCount(other, queue))
	publish(channel, "", queue, persistent("3"))
	message := get(channel, queue)
	ack(message)
	succeed(channel.TxRollback())
	ack(message)
	succeed(channel.TxCommit())
	equal("after rollback, ack and commit", 1, readyCount(other, queue))
	succeed(connection.Close())
	succeed(other.Close())
}

func large(names *names) {
	connection := connect()
	channel := open(connection)
	queue := names.queue("large")
	declareDurable(channel, queue)
	inbox := consume(channel, queue, acking)
	for _, size := range []int{0, 1, 131064, 131065, 1 << 20, 16 << 20} {
		body := bytes.Repeat([]byte("leveret"), size/7+1)[:size]
		publish(channel, "", queue, amqp.Publishing{Body: body, DeliveryMode: 2})
		message := inbox.take()
		equal(fmt.Sprintf("contents of %d", size), true, bytes.Equal(body, message.Body))
		ack(message)
	}
	succeed(connection.Close())
}

func cancelNotify(names *names) {
	connection, other := connect(), connect()
	channel := open(connection)
	queue := names.queue("deleted")
	declareDurable(channel, queue)
	cancelled := channel.NotifyCancel(make(chan string, 1))
	inbox := consume(channel, queue, acking)
	must(open(other).QueueDelete(queue, false, false, false))
	tag, _ := receive("the cancel", cancelled)
	equal("cancelled", inbox.tag, tag)
	declareDurable(channel, queue)
	succeed(connection.Close())
	succeed(other.Close())
}

func channelErrors(names *names) {
	connection, holder := connect(), connect()
	channel := open(holder)
	queue, exchange, nowhere := names.queue("errors"), names.exchange("errors"), names.prefix+"nowhere"
	declareDurable(channel, queue)
	succeed(channel.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	exclusive := declareExclusive(channel)
	in := fmt.Sprintf("' in vhost '%s'", uri.Vhost)
	queueWith := func(autoDelete bool, name string, arguments amqp.Table) func(*amqp.Channel) error {
		return func(c *amqp.Channel) error {
			_, err := c.QueueDeclare(name, true, autoDelete, false, false, arguments)
			return err
		}
	}
	looked := func(name string) func(*amqp.Channel) error {
		return func(c *amqp.Channel) error {
			_, err := look(c, name)
			return err
		}
	}
	refused(connection, 404, "NOT_FOUND - no queue '"+nowhere+in, looked(nowhere))
	refused(connection, 404, "NOT_FOUND - no exchange '"+nowhere+in, func(c *amqp.Channel) error { return c.Publish(nowhere, "", false, false, bare("x")) })
	refused(connection, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '"+queue+in+": received 'true' but current is 'false'", queueWith(true, queue, nil))
	refused(connection, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange '"+exchange+in+": received 'fanout' but current is 'direct'",
		func(c *amqp.Channel) error {
			return c.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil)
		})
	refused(connection, 406, "PRECONDITION_FAILED - unknown delivery tag 99", func(c *amqp.Channel) error { return c.Ack(99, false) })
	refused(connection, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '"+exclusive+in+". It could be originally declared on another "+
		"connection or the exclusive property value does not match that of the original declaration.", looked(exclusive))
	refused(connection, 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
		func(c *amqp.Channel) error {
			return c.ExchangeDeclare("amq.mine", "direct", true, false, false, false, nil)
		})
	refused(connection, 406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '"+nowhere+in+": {value_negative,-1}", queueWith(false, nowhere, amqp.Table{"x-message-ttl": -1}))
	publishConfirmed(holder, queue, bare("x"))
	deleting := func(ifUnused, ifEmpty bool) func(*amqp.Channel) error {
		return func(c *amqp.Channel) error {
			_, err := c.QueueDelete(queue, ifUnused, ifEmpty, false)
			return err
		}
	}
	refused(connection, 406, "PRECONDITION_FAILED - queue '"+queue+in+" not empty", deleting(false, true))
	must(channel.Consume(queue, "only", acking, true, false, false, nil))
	refused(connection, 406, "PRECONDITION_FAILED - queue '"+queue+in+" in use", deleting(true, false))
	refused(connection, 403, "ACCESS_REFUSED - queue '"+queue+in+" in exclusive use", func(c *amqp.Channel) error {
		_, err := c.Consume(queue, "", acking, false, false, false, nil)
		return err
	})
	succeed(connection.Close())
	succeed(holder.Close())
}

func connectionErrors(names *names) {
	connection := connect()
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	channel := open(connection)
	queue := names.queue("immediate")
	declareDurable(channel, queue)
	succeed(channel.Publish("", queue, false, true, bare("now")))
	end, _ := receive("the end of the connection", closed)
	equalError(540, "NOT_IMPLEMENTED - immediate=true", end)
}

func idle(*names) {
	connection := dialWith(time.Second, plain())
	time.Sleep(3500 * time.Millisecond)
	declareExclusive(open(connection))
	succeed(connection.Close())
}

func frozen(*names) {
	connection := dialWith(time.Second, plain())
	queue := declareExclusive(open(connection))
	control("freeze 5")
	other := connect()
	refused(other, 404, fmt.Sprintf("NOT_FOUND - no queue '%s' in vhost '%s'", queue, uri.Vhost), func(c *amqp.Channel) error {
		_, err := look(c, queue)
		return err
	})
	succeed(other.Close())
}

func stalled(*names) {
	connection := dialWith(time.Second, plain())
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	// The library counts from the first heartbeat that comes.
	time.Sleep(1500 * time.Millisecond)
	control("stall")
	defer control("resume")
	receive("the library to notice", closed)
}

func blocked(names *names) {
	connection, other := connect(), connect()
	channel := open(connection)
	queue := names.queue("blocked")
	declareDurable(channel, queue)
	inbox := consume(open(other), queue, autoAck)
	blockings := connection.NotifyBlocked(make(chan amqp.Blocking, 4))
	control("block")
	publish(channel, "", queue, bare("while blocked"))
	func() {
		defer control("unblock")
		blocking, _ := receive("blocked", blockings)
		equal("blocked", true, blocking.Active)
	}()
	blocking, _ := receive("unblocked", blockings)
	equal("unblocked", false, blocking.Active)
	equal("published while blocked", "while blocked", string(inbox.take().Body))
	succeed(connection.Close())
	succeed(other.Close())
}

func restarted(names *names) { lostBroker(names, "restart") }

func killed(names *names) { lostBroker(names, "kill") }

func lostBroker(names *names, command string) {
	connection := connect()
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	channel := open(connection)
	queue := names.queue("lost")
	declareDurable(channel, queue)
	publishConfirmed(connection, queue, persistent("before"))
	equal("before", "before", string(consume(channel, queue, acking).take().Body))
	control(command)
	end, _ := receive("the end of the connection", closed)
	if command == "restart" {
		equalError(320, shutdown, end)
	}
	connection = connect()
	inbox := consume(open(connection), queue, acking)
	message := inbox.take()
	equal("after it came back", all("before", true), all(string(message.Body), message.Redelivered))
	ack(message)
	publishConfirmed(connection, queue, persistent("after"))
	ack(inbox.take())
	succeed(connection.Close())
}

func consumerTimeout(names *names) {
	connection := connect()
	channel := open(connection)
	queue := names.queue("timeout")
	must(channel.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-consumer-timeout": 1000}))
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	inbox := consume(channel, queue, acking)
	publish(channel, "", queue, bare("slow"))
	inbox.take()
	end, _ := receive("the end of the channel", closed)
	end.Reason = regexp.MustCompile(`on channel \d+`).ReplaceAllString(end.Reason, "on channel N")
	equalError(406, "PRECONDITION_FAILED - delivery acknowledgement on channel N timed out. Timeout value used: 1000 ms. "+
		"This timeout value can be configured, see consumers doc guide to learn more", end)
	message := consume(open(connection), queue, acking).take()
	equal("on a new channel", all("slow", true), all(string(message.Body), message.Redelivered))
	ack(message)
	succeed(connection.Close())
}

func concurrency(names *names) {
	duration := 4 * time.Second
	if os.Getenv("INTEROP_FULL") != "" {
		duration = time.Minute
	}
	connection := connect()
	queue := names.queue("many")
	declareDurable(open(connection), queue)
	var lock sync.Mutex
	sent, fresh, seen := map[string]bool{}, map[string]int{}, map[string]bool{}
	var publishing, consuming sync.WaitGroup
	for number := range 50 {
		consumer := open(connection)
		prefetch(consumer, 20)
		inbox := consume(consumer, queue, acking)
		consuming.Add(1)
		go func() {
			defer consuming.Done()
			for delivery := range inbox.deliveries {
				lock.Lock()
				body := string(delivery.Body)
				seen[body] = true
				if !delivery.Redelivered {
					fresh[body]++
				}
				lock.Unlock()
				_ = delivery.Ack(false)
			}
		}()
		channel := open(connection)
		succeed(channel.Confirm(false))
		publishing.Add(1)
		go func() {
			defer publishing.Done()
			for n, until := 0, time.Now().Add(duration); time.Now().Before(until); n++ {
				body := fmt.Sprint(number, " ", n)
				confirm, err := channel.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, false, false, bare(body))
				if err == nil && confirm.Wait() {
					lock.Lock()
					sent[body] = true
					lock.Unlock()
				}
			}
		}()
	}
	publishing.Wait()
	eventually("everything sent", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(seen) >= len(sent)
	})
	succeed(connection.Close())
	consuming.Wait()
	lost, twice := 0, 0
	for body := range sent {
		if !seen[body] {
			lost++
		}
		if fresh[body] > 1 {
			twice++
		}
	}
	equal("lost, doubled", all(0, 0), all(lost, twice))
	equal("many", true, len(sent) > 100)
}

func secure(*names) {
	url := os.Getenv("AMQPS_URL")
	if url == "" {
		panic(notApplicable("the broker has no TLS listener yet"))
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile(os.Getenv("INTEROP_CA"))))
	connection := must(amqp.DialTLS(url, &tls.Config{RootCAs: roots}))
	channel := open(connection)
	queue := declareExclusive(channel)
	publish(channel, "", queue, bare("secret"))
	equal("body", "secret", string(get(channel, queue).Body))
	equal("prefix", true, strings.HasPrefix(queue, "amq.gen-"))
	succeed(connection.Close())
}
