package interop;

import java.util.LinkedHashMap;
import java.util.Map;

/** RabbitMQ's tutorial patterns with the Java client, every result checked. See ../README.md. */
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

        boolean failed = false;
        for (Map.Entry<String, Pattern> pattern : patterns.entrySet()) {
            Names names = new Names(pattern.getKey());
            String wrong = Checks.attempt(() -> pattern.getValue().run(names));
            String leftOver = Checks.attempt(names::deleteAll);
            wrong = wrong != null ? wrong : leftOver;
            failed |= wrong != null;
            System.out.println(wrong == null ? "ok " + pattern.getKey() : "fail " + pattern.getKey() + ": " + wrong);
        }
        // A connection that a failed pattern left open would keep the process alive.
        System.exit(failed ? 1 : 0);
    }

    private Main() {}
}
