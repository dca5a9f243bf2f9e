package interop;

import static interop.Broker.BARE;
import static interop.Broker.VHOST;
import static interop.Broker.bytes;
import static interop.Broker.connect;
import static interop.Broker.declareDurable;
import static interop.Broker.noQueue;
import static interop.Broker.publish;
import static interop.Broker.publishConfirmed;
import static interop.Broker.readyCount;
import static interop.Broker.refused;
import static interop.Broker.text;
import static interop.Checks.arrives;
import static interop.Checks.equal;
import static interop.Driver.control;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BlockedListener;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Callable;

/** The features of ../FEATURES.md that the patterns do not have. */
final class Features {
    private static final String SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    private static final boolean FULL = !System.getenv().getOrDefault("INTEROP_FULL", "").isEmpty();

    static void connecting(Names names) throws Exception {
        try (Connection connection = connect()) {
            equal("product", "RabbitMQ", connection.getServerProperties().get("product").toString());
        }
        ConnectionFactory factory = Broker.factory();
        factory.setPassword("wrong");
        try (Connection connection = factory.newConnection()) {
            throw new Checks.Mismatch("wrong password: expected a refusal, got " + connection);
        } catch (AuthenticationFailureException refused) {
            equal("wrong password", "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
                    refused.getMessage());
        }
        factory = Broker.factory();
        factory.setVirtualHost("nowhere");
        try (Connection connection = factory.newConnection()) {
            throw new Checks.Mismatch("unknown vhost: expected a refusal, got " + connection);
        } catch (IOException refused) {
            end("unknown vhost", 530, "NOT_ALLOWED - vhost nowhere not found", (ShutdownSignalException) refused.getCause());
        }
    }

    /** The connection ended with this code and text. */
    private static void end(String what, int code, String reason, ShutdownSignalException signal) {
        AMQP.Connection.Close close = (AMQP.Connection.Close) signal.getReason();
        equal(what, List.of(code, reason), List.of(close.getReplyCode(), close.getReplyText()));
    }

    private static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + Checks.WAIT_LIMIT_S * 1_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new Checks.Mismatch("expected " + what + " within " + Checks.WAIT_LIMIT_S + " s, got nothing");
            }
            Thread.sleep(10);
        }
    }

    static void declare(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            Map<String, String> exchanges = new HashMap<>();
            for (String type : List.of("direct", "fanout", "topic", "headers")) {
                exchanges.put(type, names.exchange(type));
                for (int n = 0; n < 2; n++) {
                    channel.exchangeDeclare(exchanges.get(type), type, !type.equals("topic"), type.equals("fanout"), type.equals("headers"), null);
                }
                channel.exchangeDeclarePassive(exchanges.get(type));
            }
            String queue = names.queue("durable");
            Map<String, Object> arguments = Map.of("x-max-length", 100, "x-message-ttl", 60000, "x-dead-letter-exchange", "", "x-max-priority", 5);
            for (int n = 0; n < 2; n++) {
                AMQP.Queue.DeclareOk ok = channel.queueDeclare(queue, true, false, false, arguments);
                equal("declare-ok", List.of(queue, 0, 0), List.of(ok.getQueue(), ok.getMessageCount(), ok.getConsumerCount()));
            }
            equal("a server's name", "amq.gen-", channel.queueDeclare().getQueue().substring(0, 8));
            Map<String, Object> note = Map.of("note", "any");
            channel.exchangeBind(exchanges.get("fanout"), exchanges.get("direct"), "k", note);
            channel.queueBind(queue, exchanges.get("fanout"), "");
            publish(channel, exchanges.get("direct"), "k", "through two exchanges");
            publish(channel, exchanges.get("direct"), "other", "nowhere");
            eventually("a message", () -> channel.messageCount(queue) == 1);
            channel.exchangeUnbind(exchanges.get("fanout"), exchanges.get("direct"), "k", note);
            publish(channel, exchanges.get("direct"), "k", "unbound");
            publish(channel, exchanges.get("fanout"), "", "second");
            eventually("two messages", () -> channel.messageCount(queue) == 2);
            equal("purged", 2, channel.queuePurge(queue).getMessageCount());
            equal("deleted", 0, channel.queueDelete(queue).getMessageCount());
            equal("deleted again", 0, channel.queueDelete(queue).getMessageCount());
        }
    }

    static void properties(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            String queue = names.queue("properties");
            declareDurable(channel, queue);
            Map<String, Object> headers = new HashMap<>();
            headers.put("byte", (byte) -100);
            headers.put("short", (short) -30000);
            headers.put("int", -2_000_000_000);
            headers.put("long", 1L << 40);
            headers.put("float", 0.5f);
            headers.put("double", 0.1);
            headers.put("decimal", new java.math.BigDecimal("123.45"));
            headers.put("yes", true);
            headers.put("void", null);
            headers.put("time", new Date(1709208000_000L));
            headers.put("array", Arrays.asList(1, 0.5, null, true));
            BasicProperties every = new BasicProperties("text/plain", "utf-8", headers, 2, 3, "corr", "reply", "60000", "id", new Date(1709209815_000L), "kind",
                    "guest", "app", "cluster");
            channel.basicPublish("", queue, every, bytes("all"));
            channel.basicPublish("", queue, BARE, bytes("none"));
            eventually("both", () -> channel.messageCount(queue) == 2);
            equal("properties", every, channel.basicGet(queue, true).getProps());
            equal("none", BARE, channel.basicGet(queue, true).getProps());
        }
    }

    private static List<Object> seen(Delivery delivery) {
        return List.of(text(delivery.getBody()), delivery.getEnvelope().isRedeliver());
    }

    static void consume(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            String queue = names.queue("consume");
            declareDurable(channel, queue);
            for (int n = 0; n < 5; n++) {
                publish(channel, "", queue, "" + n);
            }
            channel.basicQos(2);
            Inbox inbox = Inbox.acking(channel, queue);
            Delivery first = inbox.take();
            Delivery second = inbox.take();
            equal("first two", List.of(List.of("0", false), List.of("1", false)), List.of(seen(first), seen(second)));
            Thread.sleep(200);
            equal("no third", true, inbox.isEmpty());
            inbox.ack(first);
            equal("after an ack", List.of("2", false), seen(inbox.take()));
            channel.basicNack(second.getEnvelope().getDeliveryTag(), false, true);
            Delivery again = inbox.take();
            equal("after nack with requeue", List.of("1", true), seen(again));
            channel.basicReject(again.getEnvelope().getDeliveryTag(), true);
            again = inbox.take();
            equal("after reject with requeue", List.of("1", true), seen(again));
            channel.basicReject(again.getEnvelope().getDeliveryTag(), false);
            Delivery fourth = inbox.take();
            equal("after reject", "3", text(fourth.getBody()));
            channel.basicNack(fourth.getEnvelope().getDeliveryTag(), false, false);
            channel.basicAck(inbox.take().getEnvelope().getDeliveryTag(), true);
            channel.basicCancel(inbox.tag);
            publish(channel, "", queue, "after cancel");
            eventually("the message after cancel", () -> channel.messageCount(queue) == 1);
        }
    }

    static void get(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            String queue = names.queue("get");
            declareDurable(channel, queue);
            equal("empty", null, channel.basicGet(queue, false));
            publishConfirmed(connection, queue, BARE, List.of("a", "b"));
            GetResponse message = channel.basicGet(queue, false);
            equal("get", List.of("a", false, 1), List.of(text(message.getBody()), message.getEnvelope().isRedeliver(), message.getMessageCount()));
            channel.basicNack(message.getEnvelope().getDeliveryTag(), false, true);
            message = channel.basicGet(queue, false);
            equal("get again", List.of("a", true), List.of(text(message.getBody()), message.getEnvelope().isRedeliver()));
        }
    }

    static void tx(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            String queue = names.queue("tx");
            declareDurable(channel, queue);
            channel.txSelect();
            publish(channel, "", queue, "1");
            publish(channel, "", queue, "2");
            equal("before commit", 0, readyCount(connection, queue));
            channel.txCommit();
            equal("after commit", 2, readyCount(connection, queue));
            publish(channel, "", queue, "3");
            long tag = channel.basicGet(queue, false).getEnvelope().getDeliveryTag();
            channel.basicAck(tag, false);
            channel.txRollback();
            channel.basicAck(tag, false);
            channel.txCommit();
            equal("after rollback, ack and commit", 1, readyCount(connection, queue));
        }
    }

    static void large(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            String queue = names.queue("large");
            declareDurable(channel, queue);
            Inbox inbox = Inbox.acking(channel, queue);
            for (int size : new int[] {0, 1, 131064, 131065, 1 << 20, 16 << 20}) {
                byte[] body = new byte[size];
                new java.util.Random(size).nextBytes(body);
                channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body);
                Delivery message = inbox.take();
                equal("contents of " + size, true, Arrays.equals(body, message.getBody()));
                inbox.ack(message);
            }
        }
    }

    static void cancelNotify(Names names) throws Exception {
        try (Connection connection = connect(); Connection other = connect()) {
            Channel channel = connection.createChannel();
            String queue = names.queue("deleted");
            declareDurable(channel, queue);
            Inbox inbox = Inbox.acking(channel, queue);
            other.createChannel().queueDelete(queue);
            equal("cancelled", inbox.tag, arrives("the cancel", inbox.cancelled));
            declareDurable(channel, queue);
        }
    }

    static void channelErrors(Names names) throws Exception {
        try (Connection connection = connect(); Connection holder = connect()) {
            Channel channel = holder.createChannel();
            String queue = names.queue("errors");
            String nowhere = queue + ".nowhere";
            declareDurable(channel, queue);
            String exclusive = channel.queueDeclare().getQueue();
            String in = "' in vhost '" + VHOST + "'";
            refused(connection, 404, noQueue(nowhere), c -> c.queueDeclarePassive(nowhere));
            refused(connection, 404, "NOT_FOUND - no exchange '" + nowhere + in, c -> publish(c, nowhere, "", "x"));
            refused(connection, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '" + queue + in + ": received 'true' but current is 'false'",
                    c -> c.queueDeclare(queue, true, false, true, null));
            refused(connection, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct" + in + ": received 'fanout' but current is 'direct'",
                    c -> c.exchangeDeclare("amq.direct", "fanout", true));
            refused(connection, 406, "PRECONDITION_FAILED - unknown delivery tag 99", c -> c.basicAck(99, false));
            refused(connection, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '" + exclusive + in + ". It could be originally declared on "
                    + "another connection or the exclusive property value does not match that of the original declaration.", c -> c.queueDeclarePassive(exclusive));
            refused(connection, 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'", c -> c.exchangeDeclare("amq.mine", "direct", true));
            refused(connection, 406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '" + nowhere + in + ": {value_negative,-1}",
                    c -> c.queueDeclare(nowhere, true, false, false, Map.of("x-message-ttl", -1)));
            publishConfirmed(holder, queue, BARE, List.of("x"));
            refused(connection, 406, "PRECONDITION_FAILED - queue '" + queue + in + " not empty", c -> c.queueDelete(queue, false, true));
            channel.basicConsume(queue, false, "only", false, true, null, (tag, delivery) -> {}, tag -> {});
            refused(connection, 406, "PRECONDITION_FAILED - queue '" + queue + in + " in use", c -> c.queueDelete(queue, true, false));
            refused(connection, 403, "ACCESS_REFUSED - queue '" + queue + in + " in exclusive use", c -> Inbox.acking(c, queue));
        }
    }

    static void connectionErrors(Names names) throws Exception {
        ConnectionFactory factory = Broker.factory();
        factory.setAutomaticRecoveryEnabled(false);
        Connection connection = factory.newConnection();
        CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
        connection.addShutdownListener(closed::complete);
        Channel channel = connection.createChannel();
        String queue = names.queue("immediate");
        declareDurable(channel, queue);
        channel.basicPublish("", queue, false, true, BARE, bytes("now"));
        end("end of the connection", 540, "NOT_IMPLEMENTED - immediate=true", arrives("the end of the connection", closed));
    }

    private static Connection beating() throws Exception {
        ConnectionFactory factory = Broker.factory();
        factory.setRequestedHeartbeat(1);
        factory.setAutomaticRecoveryEnabled(false);
        return factory.newConnection();
    }

    static void idle(Names names) throws Exception {
        try (Connection connection = beating()) {
            Thread.sleep(3500);
            connection.createChannel().queueDeclare();
        }
    }

    static void frozen(Names names) throws Exception {
        String queue = beating().createChannel().queueDeclare().getQueue();
        control("freeze 5");
        try (Connection other = connect()) {
            refused(other, 404, noQueue(queue), c -> c.queueDeclarePassive(queue));
        }
    }

    static void stalled(Names names) throws Exception {
        CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
        Connection connection = beating();
        connection.addShutdownListener(closed::complete);
        Thread.sleep(1500);
        control("stall");
        try {
            arrives("the library to notice", closed);
        } finally {
            control("resume");
        }
    }

    static void blocked(Names names) throws Exception {
        try (Connection connection = connect()) {
            CompletableFuture<String> blocked = new CompletableFuture<>();
            CompletableFuture<String> unblocked = new CompletableFuture<>();
            connection.addBlockedListener(new BlockedListener() {
                @Override
                public void handleBlocked(String reason) {
                    blocked.complete(reason);
                }

                @Override
                public void handleUnblocked() {
                    unblocked.complete("");
                }
            });
            Channel channel = connection.createChannel();
            String queue = names.queue("blocked");
            declareDurable(channel, queue);
            control("block");
            try {
                publish(channel, "", queue, "while blocked");
                arrives("blocked", blocked);
            } finally {
                control("unblock");
            }
            arrives("unblocked", unblocked);
            eventually("the message", () -> channel.messageCount(queue) == 1);
        }
    }

    static void restart(Names names) throws Exception {
        lostBroker(names, "restart");
    }

    static void kill(Names names) throws Exception {
        lostBroker(names, "kill");
    }

    /** With automatic recovery: the same connection, channel and consumer go on. */
    private static void lostBroker(Names names, String command) throws Exception {
        ConnectionFactory factory = Broker.factory();
        factory.setNetworkRecoveryInterval(300);
        try (Connection connection = factory.newConnection()) {
            CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
            connection.addShutdownListener(closed::complete);
            Channel channel = connection.createChannel();
            String queue = names.queue("lost");
            declareDurable(channel, queue);
            publishConfirmed(connection, queue, MessageProperties.PERSISTENT_TEXT_PLAIN, List.of("before"));
            String temporary = channel.queueDeclare().getQueue();
            channel.queueBind(temporary, "amq.fanout", "");
            Inbox recovered = Inbox.autoAck(channel, temporary);
            Inbox inbox = Inbox.acking(channel, queue);
            equal("before", List.of("before", false), seen(inbox.take()));
            control(command);
            ShutdownSignalException signal = arrives("the end of the connection", closed);
            if (command.equals("restart")) {
                end("end of the connection", 320, SHUTDOWN, signal);
            }
            Delivery message = inbox.take();
            equal("after it came back", List.of("before", true), seen(message));
            inbox.ack(message);
            publishConfirmed(connection, queue, MessageProperties.PERSISTENT_TEXT_PLAIN, List.of("after"));
            equal("published afterwards", List.of("after", false), seen(inbox.take()));
            // The exclusive queue was declared, bound and consumed again, under another name.
            eventually("the restored binding", () -> {
                publish(channel, "amq.fanout", "", "to all");
                Thread.sleep(100);
                return !recovered.isEmpty();
            });
        }
    }

    static void consumerTimeout(Names names) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
            channel.addShutdownListener(closed::complete);
            String queue = names.queue("timeout");
            channel.queueDeclare(queue, true, false, false, Map.of("x-consumer-timeout", 1000));
            Inbox inbox = Inbox.acking(channel, queue);
            publish(channel, "", queue, "slow");
            inbox.take();
            AMQP.Channel.Close close = (AMQP.Channel.Close) arrives("the end of the channel", closed).getReason();
            equal("end of the channel", List.of(406, "PRECONDITION_FAILED - delivery acknowledgement on channel N timed out. Timeout value used: 1000 ms. "
                    + "This timeout value can be configured, see consumers doc guide to learn more"),
                    List.of(close.getReplyCode(), close.getReplyText().replaceFirst("on channel \\d+", "on channel N")));
            Inbox again = Inbox.acking(connection.createChannel(), queue);
            Delivery message = again.take();
            equal("on a new channel", List.of("slow", true), seen(message));
            again.ack(message);
        }
    }

    static void concurrency(Names names) throws Exception {
        Set<String> sent = ConcurrentHashMap.newKeySet();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Map<String, Integer> fresh = new ConcurrentHashMap<>();
        try (Connection connection = connect()) {
            String queue = names.queue("many");
            declareDurable(connection.createChannel(), queue);
            List<CompletableFuture<Void>> publishers = new ArrayList<>();
            var threads = java.util.concurrent.Executors.newFixedThreadPool(50);
            long until = System.nanoTime() + (FULL ? 60 : 4) * 1_000_000_000L;
            for (int thread = 0; thread < 50; thread++) {
                int number = thread;
                Channel consuming = connection.createChannel();
                consuming.basicQos(20);
                consuming.basicConsume(queue, false, (tag, delivery) -> {
                    String body = text(delivery.getBody());
                    seen.add(body);
                    if (!delivery.getEnvelope().isRedeliver()) {
                        fresh.merge(body, 1, Integer::sum);
                    }
                    consuming.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
                }, tag -> {});
                Channel publishing = connection.createChannel();
                publishing.confirmSelect();
                publishers.add(CompletableFuture.runAsync(() -> {
                    try {
                        for (int n = 0; System.nanoTime() < until; n++) {
                            String body = number + " " + n;
                            publish(publishing, "", queue, body);
                            equal("confirm", true, publishing.waitForConfirms(10_000));
                            sent.add(body);
                        }
                    } catch (Exception error) {
                        throw new IllegalStateException(error);
                    }
                }, threads));
            }
            CompletableFuture.allOf(publishers.toArray(new CompletableFuture<?>[0])).join();
            threads.shutdown();
            eventually("everything sent", () -> seen.containsAll(sent));
        }
        equal("doubled", 0L, fresh.values().stream().filter(count -> count > 1).count());
        System.out.println("concurrency: " + sent.size() + " messages");
    }

    static void tls(Names names) throws Exception {
        String url = System.getenv("AMQPS_URL");
        if (url == null) {
            throw new Driver.NotApplicable("the broker has no TLS listener yet");
        }
        var keys = java.security.KeyStore.getInstance(java.security.KeyStore.getDefaultType());
        keys.load(null, null);
        try (var file = new java.io.FileInputStream(System.getenv("INTEROP_CA"))) {
            keys.setCertificateEntry("ca", java.security.cert.CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var trust = javax.net.ssl.TrustManagerFactory.getInstance(javax.net.ssl.TrustManagerFactory.getDefaultAlgorithm());
        trust.init(keys);
        var context = javax.net.ssl.SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setVirtualHost("/");
        factory.useSslProtocol(context);
        factory.enableHostnameVerification();
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            String queue = channel.queueDeclare().getQueue();
            publish(channel, "", queue, "secret");
            equal("body", "secret", text(Inbox.autoAck(channel, queue).take().getBody()));
        }
    }

    private Features() {}
}
