package interop;

import static interop.Checks.arrives;
import static interop.Checks.equal;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Connections, and the calls that several patterns need. */
final class Broker {
    static final BasicProperties BARE = new BasicProperties();
    static final String VHOST = factory().getVirtualHost();

    static ConnectionFactory factory() {
        String url = System.getenv().getOrDefault("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/");
        ConnectionFactory factory = new ConnectionFactory();
        try {
            factory.setUri(url);
        } catch (Exception malformed) {
            throw new IllegalArgumentException("AMQP_URL: " + malformed.getMessage());
        }
        // The client takes a lone slash for a vhost with an empty name.
        if (factory.getVirtualHost().isEmpty()) {
            factory.setVirtualHost("/");
        }
        factory.setConnectionTimeout(Checks.WAIT_LIMIT_S * 1000);
        factory.setHandshakeTimeout(Checks.WAIT_LIMIT_S * 1000);
        factory.setChannelRpcTimeout(Checks.WAIT_LIMIT_S * 1000);
        return factory;
    }

    static Connection connect() throws Exception {
        return factory().newConnection();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    static void publish(Channel channel, String exchange, String key, String body) throws IOException {
        channel.basicPublish(exchange, key, BARE, bytes(body));
    }

    static AMQP.Queue.DeclareOk declareDurable(Channel channel, String queue) throws IOException {
        return channel.queueDeclare(queue, true, false, false, null);
    }

    /** Returns once the broker has the messages, so that counts are exact afterwards. */
    static void publishConfirmed(Connection connection, String queue, BasicProperties properties, List<String> bodies)
            throws Exception {
        try (Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            for (String body : bodies) {
                channel.basicPublish("", queue, properties, bytes(body));
            }
            equal("confirms", true, channel.waitForConfirms(Checks.WAIT_LIMIT_S * 1000));
        }
    }

    static int readyCount(Connection connection, String queue) throws Exception {
        try (Channel channel = connection.createChannel()) {
            return channel.queueDeclarePassive(queue).getMessageCount();
        }
    }

    static String noQueue(String queue) {
        return "NOT_FOUND - no queue '" + queue + "' in vhost '" + VHOST + "'";
    }

    interface ChannelStep {
        void run(Channel channel) throws Exception;
    }

    /** The step must close its channel, and only that, with this code and text. */
    static void refused(Connection connection, int code, String reason, ChannelStep step) throws Exception {
        Channel channel = connection.createChannel();
        CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
        channel.addShutdownListener(closed::complete);
        try {
            step.run(channel);
        } catch (IOException rejected) {
            // A call that has a reply fails as well, for the same reason.
            equal("cause", ShutdownSignalException.class, rejected.getCause().getClass());
        }
        ShutdownSignalException signal = arrives("channel error " + code + " " + reason, closed);
        equal("only the channel", false, signal.isHardError());
        AMQP.Channel.Close close = (AMQP.Channel.Close) signal.getReason();
        equal("channel error", List.of(code, reason), List.of(close.getReplyCode(), close.getReplyText()));
    }

    private Broker() {}
}
