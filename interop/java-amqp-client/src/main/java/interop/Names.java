package interop;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;

/** Names that no other run uses, and what has to be deleted at the end. */
final class Names {
    private static final String RUN = "interop.java.%08x".formatted(new SecureRandom().nextInt());

    private final String prefix;
    private final List<String> queues = new ArrayList<>();
    private final List<String> exchanges = new ArrayList<>();

    Names(String pattern) {
        prefix = RUN + "." + pattern + ".";
    }

    String queue(String role) {
        queues.add(prefix + role);
        return prefix + role;
    }

    String exchange(String role) {
        exchanges.add(prefix + role);
        return prefix + role;
    }

    void deleteAll() throws Exception {
        try (Connection connection = Broker.connect()) {
            Channel channel = connection.createChannel();
            for (String queue : queues) {
                channel.queueDelete(queue);
            }
            for (String exchange : exchanges) {
                channel.exchangeDelete(exchange);
            }
        }
    }
}
