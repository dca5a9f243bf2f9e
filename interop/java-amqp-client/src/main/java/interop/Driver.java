package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

/** The driver at the other end of standard input and output (see ../README.md). */
final class Driver {
    private static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));

    /** The library or the broker cannot be asked this; the message says why. */
    static final class NotApplicable extends RuntimeException {
        private static final long serialVersionUID = 1;

        NotApplicable(String why) {
            super(why);
        }
    }

    /** Has the driver do something to the broker or to this process, and waits until it is done. */
    static void control(String command) throws IOException {
        System.out.println("do " + command);
        String answer = ANSWERS.readLine();
        if (!"done".equals(answer)) {
            throw new NotApplicable(String.valueOf(answer).replaceFirst("^n/a ", ""));
        }
    }

    private Driver() {}
}
