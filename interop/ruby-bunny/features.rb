# The features of ../FEATURES.md with bunny, and with its automatic recovery for a lost broker.

require "bunny"
require "digest"
require "securerandom"

URL = ENV.fetch("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
PARTS = URL.match(%r{//(?<user>.*):(?<password>.*)@(?<host>.*):(?<port>\d+)/})
RUN = "interop.#{SecureRandom.hex(4)}"
SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"

class Mismatch < StandardError; end
class NotApplicable < StandardError; end

def equal(what, expected, got)
  raise Mismatch, "#{what}: expected #{expected.inspect}, got #{got.inspect}" if expected != got
end

def eventually(what, limit = 10)
  deadline = Time.now + limit
  until (found = yield)
    raise Mismatch, "expected #{what} within #{limit} s, got nothing" if Time.now > deadline
    sleep 0.01
  end
  found
end

def control(command)
  puts "do #{command}"
  $stdout.flush
  answer = $stdin.gets.to_s.strip
  raise NotApplicable, answer.sub("n/a ", "") if answer != "done"
end

$opened = []
$queues = []

def connect(**options)
  # No recovery where nothing is said: the end of a connection is to be seen.
  session = Bunny.new(host: PARTS[:host], port: PARTS[:port].to_i, heartbeat: 0, automatically_recover: false,
                      recover_from_connection_close: false, logger: Logger.new(File::NULL),
                      continuation_timeout: 10_000, session_error_handler: ($errors = Queue.new).then { |errors| Errors.new(errors) }, **options)
  session.start
  $opened << session
  session
end

# bunny tells the thread that made the session of errors, by raising them in it; here they are kept instead.
Errors = Struct.new(:kept) do
  def raise(error, *)
    kept << (error.is_a?(Class) ? error.new("") : error)
  end
end

def queue(role)
  $queues << "#{RUN}.#{role}"
  $queues.last
end

# What bunny raises at the next call that waits for an answer; on_error is told of unknown delivery tags only.
def close_of(channel)
  error = channel.instance_variable_get(:@last_channel_error)
  error && [error.channel_close.reply_code, error.channel_close.reply_text]
end

def refused(connection, code, text)
  channel = connection.create_channel
  told = nil
  channel.on_error { |_, close| told = [close.reply_code, close.reply_text] }
  begin
    yield channel
  rescue Bunny::ChannelLevelException => raised
    equal("exception", [code, text], [raised.channel_close.reply_code, raised.message])
  end
  equal("channel error", [code, text], eventually("the channel's error #{code}") { told || close_of(channel) })
  equal("the connection is open", true, connection.open?)
end

FEATURES = {
  "connect" => lambda {
    connection = connect
    equal("product", "RabbitMQ", connection.server_properties["product"])
    connection.create_channel.close
    connection.close
    equal("closed", true, connection.closed?)
    begin
      connect(password: "wrong")
      raise Mismatch, "expected an error for the wrong password"
    rescue Bunny::AuthenticationFailureError => error
      # The library's own text.
      equal("wrong password", "guest", error.username)
    end
    begin
      connect(vhost: "nowhere", session_error_handler: Thread.current)
      raise Mismatch, "expected an error for the unknown vhost"
    rescue Bunny::NotAllowedError => error
      equal("unknown vhost", "NOT_ALLOWED - vhost nowhere not found", error.connection_close.reply_text)
    end
  },
  "declare" => lambda {
    channel = connect.create_channel
    exchanges = %w[direct fanout topic headers].to_h do |type|
      options = { type: type, durable: type != "topic", auto_delete: type == "fanout", internal: type == "headers" }
      channel.exchange_declare("#{RUN}.#{type}", type, options)
      channel.exchange_declare("#{RUN}.#{type}", type, options)
      channel.exchange_declare("#{RUN}.#{type}", type, passive: true)
      [type, "#{RUN}.#{type}"]
    end
    name = queue("durable")
    arguments = { "x-max-length" => 100, "x-message-ttl" => 60_000, "x-dead-letter-exchange" => "", "x-max-priority" => 5 }
    2.times do
      ok = channel.queue_declare(name, durable: true, arguments: arguments)
      equal("declare-ok", [name, 0, 0], [ok.queue, ok.message_count, ok.consumer_count])
    end
    equal("a server's name", "amq.gen-", channel.queue_declare("", exclusive: true).queue[0, 8])
    counts = lambda { |n| eventually("#{n} messages") { channel.queue_declare(name, passive: true).message_count == n } }
    channel.exchange_bind(exchanges["direct"], exchanges["fanout"], routing_key: "k", arguments: { "note" => "any" })
    channel.queue_bind(name, exchanges["fanout"])
    channel.basic_publish("through two exchanges", exchanges["direct"], "k")
    channel.basic_publish("nowhere", exchanges["direct"], "other")
    counts.call(1)
    channel.exchange_unbind(exchanges["direct"], exchanges["fanout"], routing_key: "k", arguments: { "note" => "any" })
    channel.basic_publish("unbound", exchanges["direct"], "k")
    channel.basic_publish("second", exchanges["fanout"], "")
    counts.call(2)
    equal("purged", 2, channel.queue_purge(name).message_count)
    equal("deleted", 0, channel.queue_delete(name).message_count)
    equal("deleted again", 0, channel.queue_delete(name).message_count)
    exchanges.each_value { |exchange| channel.exchange_delete(exchange) }
  },
  "confirms" => lambda {
    channel = connect.create_channel
    channel.confirm_select
    name, full = queue("confirms"), queue("full")
    channel.queue(name, durable: true)
    channel.queue(full, durable: true, arguments: { "x-max-length" => 1, "x-overflow" => "reject-publish" })
    returned = Queue.new
    # Only exchanges that the channel declared are told.
    direct = channel.direct("amq.direct", durable: true)
    direct.on_return { |info, properties, body| returned << [info.reply_code, info.reply_text, body, properties.correlation_id] }
    201.times { |n| channel.default_exchange.publish(n.to_s, routing_key: name, persistent: true, mandatory: true) }
    equal("confirmed", true, channel.wait_for_confirms)
    equal("messages after all confirms", 201, channel.queue(name, durable: true).message_count)
    direct.publish("lost", routing_key: "#{RUN}.nowhere", mandatory: true, correlation_id: "c")
    equal("unroutable is confirmed", true, channel.wait_for_confirms)
    equal("returned", [312, "NO_ROUTE", "lost", "c"], eventually("the return") { returned.size.positive? && returned.pop })
    2.times { |n| channel.default_exchange.publish(n.to_s, routing_key: full) }
    equal("full queue", false, channel.wait_for_confirms)
    equal("nacked", 1, channel.nacked_set.size)
  },
  "properties" => lambda {
    channel = connect.create_channel
    q = channel.queue(queue("properties"), durable: true)
    headers = { "int32" => -2_000_000_000, "int64" => 1 << 40, "double" => 0.1, "yes" => true, "no" => false, "text" => "text ✓", "empty" => "",
                "time" => Time.at(1_709_208_000), "void" => nil, "table" => { "inner" => { "deep" => 1 }, "empty" => {} },
                "array" => [1, "two", [0.1], { "four" => true }] }
    every = { headers: headers, content_type: "text/plain", content_encoding: "utf-8", delivery_mode: 2, priority: 3, correlation_id: "corr",
              reply_to: "reply", expiration: "60000", message_id: "id", timestamp: 1_709_209_815, type: "kind", user_id: "guest", app_id: "app" }
    channel.default_exchange.publish("all", routing_key: q.name, **every)
    channel.default_exchange.publish("none", routing_key: q.name)
    _, properties, body = eventually("a message") { (got = q.pop)[0] && got }
    equal("body", "all", body)
    # bunny gives text back as bytes.
    properties.headers["text"].force_encoding("UTF-8")
    headers.each { |key, value| equal("header #{key}", value, properties.headers[key]) }
    { **every, timestamp: Time.at(1_709_209_815) }.except(:headers).each { |key, value| equal(key, value, properties[key]) }
    _, properties, = eventually("a message") { (got = q.pop)[0] && got }
    # What bunny writes on every message.
    equal("none", { content_type: "application/octet-stream", delivery_mode: 2, priority: 0 }, properties.to_h)
  },
  "consume" => lambda {
    channel = connect.create_channel
    q = channel.queue(queue("consume"), durable: true)
    5.times { |n| q.publish(n.to_s) }
    channel.prefetch(2)
    got = Queue.new
    consumer = q.subscribe(manual_ack: true, consumer_tag: "interop-tag") { |info, _, body| got << [body, info.redelivered?, info.delivery_tag] }
    equal("consumer tag", "interop-tag", consumer.consumer_tag)
    take = lambda { eventually("a delivery") { got.size.positive? && got.pop } }
    first, second = take.call, take.call
    equal("first two", [["0", false, 1], ["1", false, 2]], [first, second])
    sleep 0.2
    equal("no third", 0, got.size)
    channel.ack(first[2])
    equal("after an ack", ["2", false, 3], take.call)
    channel.nack(second[2], false, true)
    again = take.call
    equal("after nack with requeue", ["1", true], again[0, 2])
    channel.reject(again[2], true)
    again = take.call
    equal("after reject with requeue", ["1", true], again[0, 2])
    channel.reject(again[2], false)
    fourth = take.call
    equal("after reject", "3", fourth[0])
    channel.nack(fourth[2], false, false)
    channel.ack(take.call[2], true)
    consumer.cancel
    q.publish("after cancel")
    eventually("the message after cancel") { q.message_count == 1 }
    equal("nothing came", 0, got.size)
  },
  "get" => lambda {
    channel = connect.create_channel
    q = channel.queue(queue("get"), durable: true)
    equal("empty", [nil, nil, nil], q.pop)
    %w[a b].each { |body| q.publish(body) }
    eventually("both") { q.message_count == 2 }
    info, _, body = q.pop(manual_ack: true)
    equal("get", ["a", false], [body, info.redelivered?])
    channel.nack(info.delivery_tag, false, true)
    info, _, body = q.pop(manual_ack: true)
    equal("get again", ["a", true], [body, info.redelivered?])
  },
  "tx" => lambda {
    connection = connect
    channel, watcher = connection.create_channel, connection.create_channel
    q = channel.queue(queue("tx"), durable: true)
    count = lambda { watcher.queue_declare(q.name, passive: true).message_count }
    channel.tx_select
    2.times { |n| q.publish(n.to_s) }
    equal("before commit", 0, count.call)
    channel.tx_commit
    equal("after commit", 2, count.call)
    q.publish("3")
    info, = q.pop(manual_ack: true)
    channel.ack(info.delivery_tag)
    channel.tx_rollback
    channel.basic_ack(info.delivery_tag.to_i, false)
    channel.tx_commit
    equal("after rollback, ack and commit", 1, count.call)
  },
  "large" => lambda {
    channel = connect.create_channel
    q = channel.queue(queue("large"), durable: true)
    [0, 1, 131_064, 131_065, 1 << 20, 16 << 20].each do |size|
      body = ("leveret" * (size / 7 + 1)).byteslice(0, size)
      q.publish(body, persistent: true)
      _, _, got = eventually("the message", 30) { (found = q.pop)[0] && found }
      equal("size", size, got.bytesize)
      equal("contents of #{size}", Digest::SHA256.hexdigest(body), Digest::SHA256.hexdigest(got))
    end
  },
  "cancel-notify" => lambda {
    channel = connect.create_channel
    q = channel.queue(queue("deleted"), durable: true)
    cancelled = Queue.new
    consumer = Bunny::Consumer.new(channel, q)
    consumer.on_cancellation { |cancel| cancelled << cancel.consumer_tag }
    q.subscribe_with(consumer)
    connect.create_channel.queue_delete(q.name)
    equal("cancelled", consumer.consumer_tag, eventually("the cancel") { cancelled.size.positive? && cancelled.pop })
    channel.queue_declare(q.name, durable: true)
  },
  "channel-errors" => lambda {
    connection, holder = connect, connect
    channel = holder.create_channel
    q = channel.queue(queue("errors"), durable: true)
    nowhere = "#{RUN}.nowhere"
    exclusive = channel.queue("", exclusive: true).name
    refused(connection, 404, "NOT_FOUND - no queue '#{nowhere}' in vhost '/'") { |c| c.queue_declare(nowhere, passive: true) }
    refused(connection, 404, "NOT_FOUND - no exchange '#{nowhere}' in vhost '/'") { |c| c.basic_publish("x", nowhere, "") }
    refused(connection, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '#{q.name}' in vhost '/': received 'true' but current " \
                             "is 'false'") { |c| c.queue_declare(q.name, durable: true, auto_delete: true) }
    refused(connection, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current " \
                             "is 'direct'") { |c| c.exchange_declare("amq.direct", "fanout", durable: true) }
    refused(connection, 406, "PRECONDITION_FAILED - unknown delivery tag 99") { |c| c.basic_ack(99, false) }
    refused(connection, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '#{exclusive}' in vhost '/'. It could be originally " \
                             "declared on another connection or the exclusive property value does not match that of the original declaration.") do |c|
      c.queue_declare(exclusive, passive: true)
    end
    refused(connection, 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'") { |c| c.exchange_declare("amq.mine", "direct", durable: true) }
    q.publish("x")
    eventually("a message") { q.message_count == 1 }
    refused(connection, 406, "PRECONDITION_FAILED - queue '#{q.name}' in vhost '/' not empty") { |c| c.queue_delete(q.name, if_empty: true) }
    q.subscribe(manual_ack: true, exclusive: true) { nil }
    refused(connection, 406, "PRECONDITION_FAILED - queue '#{q.name}' in vhost '/' in use") { |c| c.queue_delete(q.name, if_unused: true) }
    refused(connection, 403, "ACCESS_REFUSED - queue '#{q.name}' in vhost '/' in exclusive use") { |c| c.basic_consume(q.name) }
  },
  "connection-errors" => lambda {
    connection = connect
    errors = $errors
    channel = connection.create_channel
    q = channel.queue(queue("refused"), durable: true)
    # The library refuses a tag that it knows, so these go past it.
    2.times { connection.send_frame(AMQ::Protocol::Basic::Consume.encode(channel.id, q.name, "twice", false, false, false, false, {})) }
    error = eventually("the end of the connection") { errors.size.positive? && errors.pop }
    equal("end of the connection", "NOT_ALLOWED - attempt to reuse consumer tag 'twice'", error.connection_close.reply_text)
  },
  "idle" => lambda {
    connection = connect(heartbeat: 1)
    sleep 3.5
    equal("open", true, connection.open?)
    connection.create_channel.queue("", exclusive: true)
  },
  "frozen" => lambda {
    name = connect(heartbeat: 1).create_channel.queue("", exclusive: true).name
    control("freeze 5")
    refused(connect, 404, "NOT_FOUND - no queue '#{name}' in vhost '/'") { |c| c.queue_declare(name, passive: true) }
  },
  "stalled" => lambda {
    connection = connect(heartbeat: 1)
    errors = $errors
    connection.create_channel
    control("stall")
    begin
      eventually("the library to notice", 15) { errors.size.positive? || !connection.open? }
    ensure
      control("resume")
    end
  },
  "blocked" => lambda {
    connection = connect
    said = Queue.new
    connection.on_blocked { said << "blocked" }
    connection.on_unblocked { said << "unblocked" }
    q = connection.create_channel.queue(queue("blocked"), durable: true)
    control("block")
    begin
      q.publish("while blocked")
      equal("said", "blocked", eventually("blocked") { said.size.positive? && said.pop })
    ensure
      control("unblock")
    end
    equal("said", "unblocked", eventually("unblocked") { said.size.positive? && said.pop })
    eventually("the message") { q.message_count == 1 }
  },
  "restart" => -> { lost_broker("restart") },
  "kill" => -> { lost_broker("kill") },
  "consumer-timeout" => lambda {
    connection = connect
    channel = connection.create_channel
    q = channel.queue(queue("timeout"), durable: true, arguments: { "x-consumer-timeout" => 1000 })
    got = Queue.new
    q.subscribe(manual_ack: true) { got << 1 }
    q.publish("slow")
    eventually("the first delivery") { got.size == 1 }
    error = eventually("the end of the channel", ENV["INTEROP_BROKER"] == "leveret" ? 10 : 130) { close_of(channel) }
    equal("end of the channel", [406, "PRECONDITION_FAILED - delivery acknowledgement on channel N timed out. Timeout value used: 1000 ms. This timeout " \
                                      "value can be configured, see consumers doc guide to learn more"], [error[0], error[1].sub(/on channel \d+/, "on channel N")])
    info, _, body = eventually("the message") { (found = connection.create_channel.basic_get(q.name, manual_ack: true))[0] && found }
    equal("on a new channel", ["slow", true], [body, info.redelivered])
  },
  "concurrency" => lambda {
    connection = connect
    name = queue("many")
    connection.create_channel.queue(name, durable: true)
    lock, sent, fresh, seen = Mutex.new, {}, Hash.new(0), {}
    channels = Array.new(50) { [connection.create_channel, connection.create_channel] }
    threads = channels.each_with_index.map do |(publishing, consuming), number|
      consuming.prefetch(20)
      consuming.queue(name, durable: true).subscribe(manual_ack: true) do |info, _, body|
        lock.synchronize do
          seen[body] = true
          fresh[body] += 1 unless info.redelivered?
        end
        consuming.ack(info.delivery_tag)
      end
      publishing.confirm_select
      Thread.new do
        deadline, n = Time.now + (ENV["INTEROP_FULL"].to_s.empty? ? 4 : 60), 0
        while Time.now < deadline
          body = "#{number} #{n += 1}"
          publishing.basic_publish(body, "", name)
          raise Mismatch, "a publish was nacked" unless publishing.wait_for_confirms
          lock.synchronize { sent[body] = true }
        end
      end
    end
    threads.each(&:join)
    eventually("everything sent", 20) { lock.synchronize { seen.size >= sent.size } }
    equal("lost", [], sent.keys - seen.keys)
    equal("doubled", [], fresh.select { |_, count| count > 1 }.keys)
    puts "concurrency: #{sent.size} messages"
  },
  "tls" => lambda {
    raise NotApplicable, "the broker has no TLS listener yet" unless ENV["AMQPS_URL"]
    session = Bunny.new(ENV["AMQPS_URL"], tls_ca_certificates: [ENV["INTEROP_CA"]], verify_peer: true, logger: Logger.new(File::NULL))
    session.start
    q = session.create_channel.queue("", exclusive: true)
    q.publish("secret")
    eventually("the message") { q.pop[2] == "secret" }
    session.close
  }
}.freeze

def lost_broker(command)
  connection = connect(automatically_recover: true, network_recovery_interval: 0.3, recover_from_connection_close: true)
  channel = connection.create_channel
  q = channel.queue(queue(command), durable: true)
  channel.confirm_select
  got = Queue.new
  q.subscribe(manual_ack: true) { |info, _, body| got << [body, info.redelivered?, info.delivery_tag] }
  q.publish("before", persistent: true)
  equal("confirmed before", true, channel.wait_for_confirms)
  equal("before", ["before", false], eventually("a delivery") { got.size.positive? && got.pop }[0, 2])
  control(command)
  message = eventually("the message after it came back", 25) { got.size.positive? && got.pop }
  equal("after it came back", ["before", true], message[0, 2])
  channel.ack(message[2])
  q.publish("after", persistent: true)
  equal("after", "after", eventually("a delivery") { got.size.positive? && got.pop }[0])
end

failed = false
FEATURES.each do |name, feature|
  next unless ARGV.empty? || ARGV.include?(name)
  begin
    feature.call
    puts "ok #{name}"
  rescue NotApplicable => why
    puts "n/a #{name}: #{why.message}"
  rescue Exception => error # the library's own errors are findings too
    failed = true
    puts error.full_message(highlight: false) unless error.is_a?(Mismatch)
    puts "fail #{name}: #{error.class == Mismatch ? '' : "#{error.class}: "}#{error.message.gsub(/\s+/, ' ')}"
  ensure
    $opened.each { |session| session.close(false) if session.open? rescue nil }
    $opened.clear
    unless $queues.empty?
      connection = connect
      channel = connection.create_channel
      $queues.each { |name| channel.queue_delete(name) }
      $queues.clear
      connection.close
      $opened.clear
    end
  end
  $stdout.flush
end
exit!(failed ? 1 : 0)
