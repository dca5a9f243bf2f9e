package interop;

import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Checks with messages, and time limits. */
final class Checks {
    static final int PATTERN_LIMIT_S = 40;
    static final int WAIT_LIMIT_S = 10;

    /** What {@link #attempt} gives begins with this when the step cannot be asked of this library or broker. */
    static final String NOT_APPLICABLE = "n/a ";

    private static final ExecutorService STEPS = Executors.newCachedThreadPool();

    /** A check failed; the message says what was expected and what came. */
    static final class Mismatch extends RuntimeException {
        private static final long serialVersionUID = 1;

        Mismatch(String message) {
            super(message);
        }
    }

    interface Step {
        void run() throws Exception;
    }

    static void equal(String what, Object expected, Object got) {
        if (!Objects.equals(expected, got)) {
            throw new Mismatch(what + ": expected " + expected + ", got " + got);
        }
    }

    static <T> T arrives(String what, CompletableFuture<T> coming) throws Exception {
        try {
            return coming.get(WAIT_LIMIT_S, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            throw new Mismatch("expected " + what + " within " + WAIT_LIMIT_S + " s, got nothing");
        }
    }

    /** Runs a step within the time limit; gives what went wrong, or null. */
    static String attempt(Step step) {
        var running = STEPS.submit(() -> {
            step.run();
            return null;
        });
        try {
            running.get(PATTERN_LIMIT_S, TimeUnit.SECONDS);
            return null;
        } catch (TimeoutException late) {
            return "expected an end within " + PATTERN_LIMIT_S + " s, got none";
        } catch (InterruptedException stopped) {
            return "expected an end, got an interrupt";
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            if (cause instanceof Driver.NotApplicable) {
                return NOT_APPLICABLE + cause.getMessage();
            }
            return cause instanceof Mismatch ? cause.getMessage() : "expected no exception, got " + causes(cause);
        }
    }

    /** The client hides the broker's text one cause deeper. */
    private static String causes(Throwable error) {
        return error.getCause() == null ? error.toString() : error + ", caused by " + causes(error.getCause());
    }

    private Checks() {}
}
