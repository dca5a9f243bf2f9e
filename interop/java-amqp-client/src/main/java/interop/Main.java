package interop;

import java.util.LinkedHashMap;
import java.util.Map;

/** RabbitMQ's tutorial patterns and the features of ../FEATURES.md with the Java client, every result checked. See ../README.md. */
public final class Main {
    interface Pattern {
        void run(Names names) throws Exception;
    }

    public static void main(String[] args) {
        Map<String, Pattern> patterns = new LinkedHashMap<>();
        patterns.put("work-queue", Patterns::workQueue);
        patterns.put("publish-subscribe", Patterns::publishSubscribe);
        patterns.put("routing", Patterns::routing);
        patterns.put("topics", Patterns::topics);
        patterns.put("rpc", Patterns::rpc);
        patterns.put("confirms", Messages::confirms);
        patterns.put("errors", Faults::errors);
        patterns.put("messages", Messages::messages);
        patterns.put("queues", Faults::queues);
        patterns.put("connect", Features::connecting);
        patterns.put("declare", Features::declare);
        patterns.put("properties", Features::properties);
        patterns.put("consume", Features::consume);
        patterns.put("get", Features::get);
        patterns.put("tx", Features::tx);
        patterns.put("large", Features::large);
        patterns.put("cancel-notify", Features::cancelNotify);
        patterns.put("channel-errors", Features::channelErrors);
        patterns.put("connection-errors", Features::connectionErrors);
        patterns.put("idle", Features::idle);
        patterns.put("frozen", Features::frozen);
        patterns.put("stalled", Features::stalled);
        patterns.put("blocked", Features::blocked);
        patterns.put("restart", Features::restart);
        patterns.put("kill", Features::kill);
        patterns.put("consumer-timeout", Features::consumerTimeout);
        patterns.put("concurrency", Features::concurrency);
        patterns.put("tls", Features::tls);

        boolean failed = false;
        for (Map.Entry<String, Pattern> pattern : patterns.entrySet()) {
            Names names = new Names(pattern.getKey());
            String wrong = Checks.attempt(() -> pattern.getValue().run(names));
            String leftOver = Checks.attempt(names::deleteAll);
            wrong = wrong != null ? wrong : leftOver;
            if (wrong != null && wrong.startsWith(Checks.NOT_APPLICABLE)) {
                System.out.println(wrong.replaceFirst(" ", " " + pattern.getKey() + ": "));
                continue;
            }
            failed |= wrong != null;
            System.out.println(wrong == null ? "ok " + pattern.getKey() : "fail " + pattern.getKey() + ": " + wrong.replaceAll("\\s+", " "));
        }
        // A connection that a failed pattern left open would keep the process alive.
        System.exit(failed ? 1 : 0);
    }

    private Main() {}
}
