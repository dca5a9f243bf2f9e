<?php
// The line protocol with the driver (see ../README.md): results of features, and commands for the broker.

define('RUN', 'interop.' . bin2hex(random_bytes(4)));

/** A check failed; the message says what was expected and what came. */
class Mismatch extends Exception
{
}

/** The library or the broker cannot be asked this; the message says why. */
class NotApplicable extends Exception
{
}

/** Host and port of the broker. */
function address(): array
{
    $url = parse_url(getenv('AMQP_URL') ?: 'amqp://guest:guest@127.0.0.1:5672/%2F');
    return [$url['host'], $url['port']];
}

function equal(string $what, $expected, $got): void
{
    if ($expected !== $got) {
        throw new Mismatch("$what: expected " . json_encode($expected) . ', got ' . json_encode($got));
    }
}

function eventually(string $what, callable $condition, int $limit = 10)
{
    $deadline = microtime(true) + $limit;
    while (!($found = $condition())) {
        if (microtime(true) > $deadline) {
            throw new Mismatch("expected $what within $limit s, got nothing");
        }
        usleep(10000);
    }
    return $found;
}

function control(string $command): void
{
    print "do $command\n";
    $answer = trim((string) fgets(STDIN));
    if ($answer !== 'done') {
        throw new NotApplicable(preg_replace('/^n\/a /', '', $answer));
    }
}

/** Runs each feature and reports it, cleans up after each; ends the process, with 1 if one failed. */
function run(array $features, callable $cleanUp): void
{
    global $argv;
    $only = array_slice($argv, 1);
    $failed = false;
    foreach ($features as $name => $feature) {
        if ($only && !in_array($name, $only, true)) {
            continue;
        }
        try {
            try {
                $feature();
            } finally {
                $cleanUp();
            }
            print "ok $name\n";
        } catch (NotApplicable $why) {
            print "n/a $name: {$why->getMessage()}\n";
        } catch (Throwable $error) {
            $failed = true;
            print $error instanceof Mismatch ? '' : "$error\n";
            $class = $error instanceof Mismatch ? '' : get_class($error) . ': ';
            print "fail $name: $class" . preg_replace('/\s+/', ' ', $error->getMessage()) . "\n";
        }
    }
    exit($failed ? 1 : 0);
}
