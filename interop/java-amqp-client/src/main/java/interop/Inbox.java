package interop;

import static interop.Checks.equal;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import java.io.IOException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The deliveries of one consumer, in order of arrival. */
final class Inbox {
    final Channel channel;
    final String tag;
    /** Gets the consumer tag when the server cancels the consumer. */
    final CompletableFuture<String> cancelled = new CompletableFuture<>();

    private final BlockingQueue<Delivery> waiting = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> tags = new LinkedBlockingQueue<>();

    static Inbox acking(Channel channel, String queue) throws IOException {
        return new Inbox(channel, queue, false);
    }

    static Inbox autoAck(Channel channel, String queue) throws IOException {
        return new Inbox(channel, queue, true);
    }

    private Inbox(Channel channel, String queue, boolean autoAck) throws IOException {
        this.channel = channel;
        tag = channel.basicConsume(
                queue,
                autoAck,
                (consumerTag, delivery) -> {
                    tags.add(consumerTag);
                    waiting.add(delivery);
                },
                cancelled::complete);
    }

    Delivery take() throws InterruptedException {
        Delivery delivery = waiting.poll(Checks.WAIT_LIMIT_S, TimeUnit.SECONDS);
        if (delivery == null) {
            throw new Checks.Mismatch("expected a delivery within " + Checks.WAIT_LIMIT_S + " s, got nothing");
        }
        equal("consumer tag", tag, tags.remove());
        return delivery;
    }

    boolean isEmpty() {
        return waiting.isEmpty();
    }

    void ack(Delivery delivery) throws IOException {
        channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
    }
}
