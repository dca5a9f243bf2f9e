package interop;

import static interop.Broker.BARE;
import static interop.Broker.bytes;
import static interop.Broker.connect;
import static interop.Broker.declareDurable;
import static interop.Broker.publishConfirmed;
import static interop.Broker.readyCount;
import static interop.Broker.text;
import static interop.Checks.equal;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Publisher confirms; contents and properties that must come back as they went. */
final class Messages {
    private static final BasicProperties PERSISTENT = new BasicProperties.Builder().deliveryMode(2).build();

    static void confirms(Names names) throws Exception {
        String queue = names.queue("confirmed");
        String shortQueue = names.queue("short");
        String nowhere = queue + ".none";
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            declareDurable(channel, queue);
            channel.queueDeclare(
                    shortQueue, true, false, false, Map.of("x-max-length", 1, "x-overflow", "reject-publish"));
            channel.confirmSelect();
            channel.basicPublish("", queue, PERSISTENT, bytes("single"));
            channel.waitForConfirmsOrDie(Checks.WAIT_LIMIT_S * 1000);
            equal("messages after one confirm", 1, readyCount(connection, queue));

            for (int n = 0; n < 1000; n++) {
                channel.basicPublish("", queue, PERSISTENT, bytes("batch " + n));
            }
            channel.waitForConfirmsOrDie(Checks.WAIT_LIMIT_S * 1000);
            equal("next sequence number", 1L + 1 + 1000, channel.getNextPublishSeqNo());
            equal("messages after the batch", 1 + 1000, channel.queuePurge(queue).getMessageCount());

            BlockingQueue<List<Object>> events = new LinkedBlockingQueue<>();
            channel.addReturnListener(lost -> events.add(List.of(
                    lost.getReplyCode(), lost.getReplyText(), lost.getExchange(), lost.getRoutingKey(),
                    lost.getProperties(), text(lost.getBody()))));
            channel.addConfirmListener(
                    (tag, multiple) -> events.add(List.of("ack", tag)),
                    (tag, multiple) -> events.add(List.of("nack", tag)));
            channel.basicPublish("", nowhere, true, PERSISTENT, bytes("lost"));
            equal("first, the return", List.of(312, "NO_ROUTE", "", nowhere, PERSISTENT, "lost"), next(events));
            equal("then its ack", List.of("ack", 1002L), next(events));
            channel.basicPublish("", nowhere, PERSISTENT, bytes("lost"));
            equal("unroutable, not mandatory", List.of("ack", 1003L), next(events));
            channel.basicPublish("", shortQueue, PERSISTENT, bytes("fits"));
            equal("fits", List.of("ack", 1004L), next(events));
            channel.basicPublish("", shortQueue, PERSISTENT, bytes("one too many"));
            equal("publish to a full queue", List.of("nack", 1005L), next(events));
        }
    }

    private static List<Object> next(BlockingQueue<List<Object>> events) throws InterruptedException {
        List<Object> event = events.poll(Checks.WAIT_LIMIT_S, TimeUnit.SECONDS);
        if (event == null) {
            throw new Checks.Mismatch("expected a return or confirm within " + Checks.WAIT_LIMIT_S + " s, got nothing");
        }
        return event;
    }

    /** One header of each kind, so that none changes its type on the way. */
    private static Map<String, Object> headers() {
        Map<String, Object> headers = new HashMap<>();
        headers.put("text", "snowman \u2603");
        headers.put("flag", true);
        headers.put("i8", (byte) -7);
        headers.put("i16", (short) -700);
        headers.put("i32", -70_000);
        headers.put("i64", -(1L << 40));
        headers.put("float", 0.5f);
        headers.put("double", 1.1);
        headers.put("decimal", new BigDecimal("3.14"));
        headers.put("bytes", new byte[] {0, -1});
        headers.put("time", new Date(1_709_208_000_000L));
        headers.put("nothing", null);
        headers.put("table", Map.of("list", List.of(1, "two", false, Map.of("deep", 3))));
        return headers;
    }

    /** The same value in classes that compare by content: the client gives strings and bytes in others than it takes. */
    private static Object comparable(Object value) {
        if (value instanceof LongString string) {
            return string.toString();
        }
        if (value instanceof byte[] bytes) {
            return Arrays.toString(bytes);
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Messages::comparable).toList();
        }
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> sorted = new TreeMap<>();
            map.forEach((key, inner) -> sorted.put(key, comparable(inner)));
            return sorted;
        }
        return value;
    }

    private static BasicProperties withoutHeaders(BasicProperties properties) {
        return properties.builder().headers(null).build();
    }

    static void messages(Names names) throws Exception {
        String queue = names.queue("messages");
        byte[] large = new byte[1024 * 1024];
        for (int i = 0; i < large.length; i++) {
            // A period that is no power of two, so that swapped or repeated frames show.
            large[i] = (byte) (i % 251);
        }
        BasicProperties all = new BasicProperties.Builder()
                .contentType("application/octet-stream")
                .contentEncoding("identity")
                .headers(headers())
                .deliveryMode(2)
                .priority(3)
                .correlationId("correlation")
                .replyTo("reply")
                .expiration("60000")
                .messageId("message")
                .timestamp(new Date(1_700_000_000_000L))
                .type("type")
                .userId(Broker.factory().getUsername())
                .appId("app")
                .clusterId("cluster")
                .build();
        record Sent(String what, byte[] body, BasicProperties properties) {}
        List<Sent> everything = new ArrayList<>();
        everything.add(new Sent("1 MiB body", large, all));
        everything.add(new Sent("empty body", new byte[0], all));
        everything.add(new Sent("no properties", bytes("bare"), BARE));
        everything.add(new Sent("empty header table", new byte[0], BARE.builder().headers(Map.of()).build()));

        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            declareDurable(channel, queue);
            Inbox inbox = Inbox.acking(channel, queue);
            for (Sent sent : everything) {
                channel.basicPublish("", queue, sent.properties, sent.body);
                Delivery got = inbox.take();
                BasicProperties came = got.getProperties();
                equal("bytes of " + sent.what, sent.body.length, got.getBody().length);
                equal(sent.what + " unchanged", true, Arrays.equals(sent.body, got.getBody()));
                equal("headers with " + sent.what, comparable(sent.properties.getHeaders()), comparable(came.getHeaders()));
                equal("properties with " + sent.what, withoutHeaders(sent.properties), withoutHeaders(came));
                inbox.ack(got);
            }
            channel.basicCancel(inbox.tag);

            publishConfirmed(connection, queue, BARE, List.of("one", "two", "three"));
            List<Object> firstTime = List.of("one", false, 2);
            for (List<Object> expected : List.of(
                    firstTime, List.<Object>of("one", true, 2), List.<Object>of("two", false, 1),
                    List.<Object>of("three", false, 0))) {
                GetResponse got = channel.basicGet(queue, false);
                equal("get finds a message", true, got != null);
                equal("get: body, redelivered, left over", expected,
                        List.of(text(got.getBody()), got.getEnvelope().isRedeliver(), got.getMessageCount()));
                equal("get: exchange, routing key", List.of("", queue),
                        List.of(got.getEnvelope().getExchange(), got.getEnvelope().getRoutingKey()));
                if (expected.equals(firstTime)) {
                    channel.basicReject(got.getEnvelope().getDeliveryTag(), true);
                } else {
                    channel.basicAck(got.getEnvelope().getDeliveryTag(), false);
                }
            }
            equal("get from an empty queue", null, channel.basicGet(queue, false));
        }
    }

    private Messages() {}
}
