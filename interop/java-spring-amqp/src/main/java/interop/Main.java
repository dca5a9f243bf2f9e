package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.amqp.core.AcknowledgeMode;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.DirectExchange;
import org.springframework.amqp.core.MessageListener;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.config.RetryInterceptorBuilder;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.retry.RejectAndDontRequeueRecoverer;
import org.springframework.context.support.GenericApplicationContext;

/** Spring AMQP: confirms and returns, listener containers, retry with a dead-letter queue, RabbitAdmin, a lost broker. */
public final class Main {
    private static final String RUN = "interop.spring.%08x".formatted(new SecureRandom().nextInt());
    private static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));
    private static final CachingConnectionFactory CONNECTIONS = connections();
    private static final RabbitTemplate TEMPLATE = new RabbitTemplate(CONNECTIONS);
    private static final RabbitAdmin ADMIN = new RabbitAdmin(TEMPLATE);
    private static final List<AbstractMessageListenerContainer> CONTAINERS = new ArrayList<>();
    private static final List<String> QUEUES = new ArrayList<>();
    private static final GenericApplicationContext CONTEXT = new GenericApplicationContext();

    private static final class NotApplicable extends RuntimeException {
        private static final long serialVersionUID = 1;

        NotApplicable(String why) {
            super(why);
        }
    }

    private interface Feature {
        void run() throws Exception;
    }

    private static CachingConnectionFactory connections() {
        CachingConnectionFactory factory = new CachingConnectionFactory(URI.create(System.getenv("AMQP_URL").replaceFirst("%2F$", "")));
        factory.setVirtualHost("/");
        factory.setPublisherConfirmType(CachingConnectionFactory.ConfirmType.CORRELATED);
        factory.setPublisherReturns(true);
        return factory;
    }

    private static void control(String command) throws Exception {
        System.out.println("do " + command);
        String answer = ANSWERS.readLine();
        if (!"done".equals(answer)) {
            throw new NotApplicable(String.valueOf(answer).replaceFirst("^n/a ", ""));
        }
    }

    private static void equal(String what, Object expected, Object got) {
        if (!expected.equals(got)) {
            throw new IllegalStateException(what + ": expected " + expected + ", got " + got);
        }
    }

    private static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("expected " + what + " within 20 s, got nothing");
            }
            Thread.sleep(20);
        }
    }

    private static Queue queue(String role) {
        QUEUES.add(RUN + "." + role);
        return QueueBuilder.durable(RUN + "." + role).build();
    }

    private static <C extends AbstractMessageListenerContainer> C start(C container, String queue, MessageListener listener) {
        container.setConnectionFactory(CONNECTIONS);
        container.setQueueNames(queue);
        container.setMessageListener(listener);
        container.setRecoveryInterval(300);
        container.setAmqpAdmin(ADMIN);
        container.afterPropertiesSet();
        container.start();
        CONTAINERS.add(container);
        return container;
    }

    private static void confirmsAndReturns() throws Exception {
        Queue queue = queue("confirms");
        ADMIN.declareQueue(queue);
        TEMPLATE.setMandatory(true);
        for (int n = 0; n < 50; n++) {
            CorrelationData sent = new CorrelationData();
            TEMPLATE.convertAndSend("", queue.getName(), "message " + n, sent);
            equal("confirm", true, sent.getFuture().get(10, TimeUnit.SECONDS).isAck());
        }
        CorrelationData lost = new CorrelationData();
        TEMPLATE.convertAndSend("", RUN + ".nowhere", "lost", lost);
        equal("the confirm of an unroutable message", true, lost.getFuture().get(10, TimeUnit.SECONDS).isAck());
        equal("returned", List.of(312, "NO_ROUTE"), List.of(lost.getReturned().getReplyCode(), lost.getReturned().getReplyText()));
        equal("messages", 50, (Integer) ADMIN.getQueueProperties(queue.getName()).get(RabbitAdmin.QUEUE_MESSAGE_COUNT));
    }

    private static void containers() throws Exception {
        for (boolean direct : new boolean[] {false, true}) {
            Queue queue = queue(direct ? "direct" : "simple");
            ADMIN.declareQueue(queue);
            List<String> got = Collections.synchronizedList(new ArrayList<>());
            MessageListener listener = message -> got.add(new String(message.getBody()));
            if (direct) {
                start(new DirectMessageListenerContainer(), queue.getName(), listener).setConsumersPerQueue(2);
            } else {
                start(new SimpleMessageListenerContainer(), queue.getName(), listener).setPrefetchCount(5);
            }
            for (int n = 0; n < 30; n++) {
                TEMPLATE.convertAndSend("", queue.getName(), "message " + n);
            }
            eventually("30 messages", () -> got.size() == 30);
        }
    }

    private static void retryAndDeadLetter() throws Exception {
        Queue dead = queue("dead");
        QUEUES.add(RUN + ".retried");
        Queue retried = QueueBuilder.durable(RUN + ".retried").deadLetterExchange("").deadLetterRoutingKey(dead.getName()).build();
        ADMIN.declareQueue(dead);
        ADMIN.declareQueue(retried);
        AtomicInteger tries = new AtomicInteger();
        SimpleMessageListenerContainer container = new SimpleMessageListenerContainer();
        container.setAdviceChain(RetryInterceptorBuilder.stateless().maxAttempts(3).backOffOptions(50, 1, 50).recoverer(new RejectAndDontRequeueRecoverer()).build());
        container.setAcknowledgeMode(AcknowledgeMode.AUTO);
        start(container, retried.getName(), message -> {
            tries.incrementAndGet();
            throw new IllegalStateException("as it should");
        });
        TEMPLATE.convertAndSend("", retried.getName(), "bad");
        var letter = TEMPLATE.receive(dead.getName(), 20_000);
        equal("dead letter", "bad", new String(letter.getBody()));
        equal("tries", 3, tries.get());
        equal("x-death", "rejected", letter.getMessageProperties().getXDeathHeader().get(0).get("reason"));
    }

    private static void sendAndReceive() throws Exception {
        Queue queue = queue("asked");
        ADMIN.declareQueue(queue);
        var answering = CompletableFuture.runAsync(() -> TEMPLATE.execute(channel -> {
            RabbitTemplate server = new RabbitTemplate(CONNECTIONS);
            server.setReceiveTimeout(10_000);
            return server.<String, String>receiveAndReply(queue.getName(), text -> "hello " + text);
        }));
        RabbitTemplate client = new RabbitTemplate(CONNECTIONS);
        client.setReplyTimeout(10_000);
        equal("reply over direct reply-to", "hello leveret", client.convertSendAndReceive("", queue.getName(), "leveret"));
        answering.get(10, TimeUnit.SECONDS);
        client.stop();
    }

    /** The exclusive and the auto-delete queue are declared again by RabbitAdmin when the connection comes back. */
    private static void lostBroker(String command) throws Exception {
        Queue durable = queue(command);
        Queue temporary = QueueBuilder.nonDurable(RUN + "." + command + ".exclusive").exclusive().build();
        DirectExchange exchange = new DirectExchange(RUN + "." + command + ".exchange", true, false);
        Binding binding = BindingBuilder.bind(temporary).to(exchange).with("k");
        for (var declared : Map.of("a" + command, durable, "b" + command, temporary, "c" + command, exchange, "d" + command, binding).entrySet()) {
            CONTEXT.getBeanFactory().registerSingleton(declared.getKey(), declared.getValue());
        }
        ADMIN.initialize();
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        MessageListener listener = message -> got.add(new String(message.getBody()));
        start(new SimpleMessageListenerContainer(), durable.getName(), listener);
        start(new SimpleMessageListenerContainer(), temporary.getName(), listener);
        TEMPLATE.convertAndSend("", durable.getName(), "before");
        eventually("the first message", () -> got.contains("before"));
        control(command);
        eventually("a confirm", () -> {
            try {
                CorrelationData sent = new CorrelationData();
                TEMPLATE.convertAndSend("", durable.getName(), "after", sent);
                return sent.getFuture().get(5, TimeUnit.SECONDS).isAck();
            } catch (Exception error) {
                System.out.println("not yet: " + error.getMessage());
                return false;
            }
        });
        eventually("the message after it came back", () -> got.contains("after"));
        eventually("a message through the exclusive queue", () -> {
            TEMPLATE.convertAndSend(exchange.getName(), "k", "again");
            Thread.sleep(100);
            return got.contains("again");
        });
        ADMIN.deleteExchange(exchange.getName());
    }

    private static void cleanUp() {
        CONTAINERS.forEach(AbstractMessageListenerContainer::stop);
        QUEUES.forEach(ADMIN::deleteQueue);
        CONNECTIONS.destroy();
    }

    public static void main(String[] arguments) {
        CONTEXT.refresh();
        ADMIN.setApplicationContext(CONTEXT);
        ADMIN.afterPropertiesSet();
        Map<String, Feature> features = new LinkedHashMap<>();
        features.put("confirms-and-returns", Main::confirmsAndReturns);
        features.put("listener-containers", Main::containers);
        features.put("retry-and-dead-letter", Main::retryAndDeadLetter);
        features.put("send-and-receive", Main::sendAndReceive);
        features.put("restart", () -> lostBroker("restart"));
        features.put("kill", () -> lostBroker("kill"));
        features.put("clean-up", Main::cleanUp);
        boolean failed = false;
        for (var feature : features.entrySet()) {
            try {
                feature.getValue().run();
                System.out.println("ok " + feature.getKey());
            } catch (NotApplicable why) {
                System.out.println("n/a " + feature.getKey() + ": " + why.getMessage());
            } catch (Exception error) {
                failed = true;
                error.printStackTrace(System.out);
                System.out.println("fail " + feature.getKey() + ": " + error.toString().replaceAll("\\s+", " "));
            }
        }
        System.exit(failed ? 1 : 0);
    }

    private Main() {}
}
