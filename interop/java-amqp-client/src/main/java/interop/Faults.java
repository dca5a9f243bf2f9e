package interop;

import static interop.Broker.BARE;
import static interop.Broker.VHOST;
import static interop.Broker.connect;
import static interop.Broker.declareDurable;
import static interop.Broker.noQueue;
import static interop.Broker.publish;
import static interop.Broker.publishConfirmed;
import static interop.Broker.refused;
import static interop.Broker.text;
import static interop.Checks.arrives;
import static interop.Checks.equal;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.List;

/** What the broker refuses and what goes on afterwards; the ends of queues and consumers. */
final class Faults {
    static void errors(Names names) throws Exception {
        String queue = names.queue("durable");
        String missing = names.queue("missing");
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            declareDurable(channel, queue);
            publishConfirmed(connection, queue, BARE, List.of("still here"));
            refused(connection, 404, noQueue(missing), other -> other.queueDeclarePassive(missing));
            refused(connection, 404, noQueue(missing), other -> Inbox.acking(other, missing));
            refused(connection, 406,
                    "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '" + queue + "' in vhost '" + VHOST
                            + "': received 'false' but current is 'true'",
                    other -> other.queueDeclare(queue, false, false, false, null));
            refused(connection, 406, "PRECONDITION_FAILED - unknown delivery tag 99",
                    other -> other.basicAck(99, false));
            refused(connection, 404, "NOT_FOUND - no exchange '" + missing + "' in vhost '" + VHOST + "'",
                    other -> publish(other, missing, "", "lost"));
            GetResponse after = channel.basicGet(queue, true);
            equal("after the channel errors", true, after != null);
            equal("after the channel errors", List.of("still here", false),
                    List.of(text(after.getBody()), after.getEnvelope().isRedeliver()));
        }

        ConnectionFactory factory = Broker.factory();
        factory.setPassword("wrong");
        try (Connection connection = factory.newConnection()) {
            throw new Checks.Mismatch("wrong password: expected a refusal, got " + connection);
        } catch (AuthenticationFailureException refused) {
            equal("wrong password",
                    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
                            + "For details see the broker logfile.",
                    refused.getMessage());
        }
        factory = Broker.factory();
        factory.setVirtualHost(missing);
        try (Connection connection = factory.newConnection()) {
            throw new Checks.Mismatch("unknown vhost: expected a refusal, got " + connection);
        } catch (IOException refused) {
            if (!(refused.getCause() instanceof ShutdownSignalException signal)) {
                throw refused;
            }
            AMQP.Connection.Close close = (AMQP.Connection.Close) signal.getReason();
            equal("unknown vhost", List.of(530, "NOT_ALLOWED - vhost " + missing + " not found"),
                    List.of(close.getReplyCode(), close.getReplyText()));
        }
    }

    static void queues(Names names) throws Exception {
        String queue = names.queue("queue");
        String autoDelete = names.queue("auto-delete");
        String precondition = "PRECONDITION_FAILED - queue '" + queue + "' in vhost '" + VHOST + "' ";
        try (Connection connection = connect(); Connection other = connect()) {
            Channel channel = connection.createChannel();
            declareDurable(channel, queue);
            publishConfirmed(connection, queue, BARE, List.of("held", "purged", "purged"));
            GetResponse held = channel.basicGet(queue, false);
            equal("get finds a message", true, held != null);
            equal("purged: ready ones only", 2, channel.queuePurge(queue).getMessageCount());
            channel.basicReject(held.getEnvelope().getDeliveryTag(), true);
            // The next call is on another channel: wait until the message is back.
            channel.queueDeclarePassive(queue);
            refused(connection, 406, precondition + "not empty", refusing -> refusing.queueDelete(queue, false, true));

            Inbox inbox = Inbox.acking(channel, queue);
            Delivery again = inbox.take();
            equal("held message", List.of("held", true),
                    List.of(text(again.getBody()), again.getEnvelope().isRedeliver()));
            refused(connection, 406, precondition + "in use", refusing -> refusing.queueDelete(queue, true, false));
            publishConfirmed(other, queue, BARE, List.of("unacked too"));
            inbox.take();
            Channel deleting = other.createChannel();
            equal("deleted: ready ones only", 0, deleting.queueDelete(queue).getMessageCount());
            equal("cancelled consumer", inbox.tag, arrives("a cancel notification", inbox.cancelled));
            equal("deleted once more", 0, deleting.queueDelete(queue).getMessageCount());

            channel.queueDeclare(autoDelete, false, true, true, null);
            channel.basicCancel(Inbox.acking(channel, autoDelete).tag);
            refused(connection, 404, noQueue(autoDelete), refusing -> refusing.queueDeclarePassive(autoDelete));
        }
    }

    private Faults() {}
}
