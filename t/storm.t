#!/usr/bin/perl

# The stress test, while nginx as a whole is killed, stopped and replaced, and while
# its disk hangs, is slow, full or gone: what is in a file outlives all that, in each
# of its modes, and what is not does not. Short forms, side by side; util/stress
# --storm runs long ones. STRESS_SEED repeats the plan.

# Not in util/test --quick: it takes its time.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Restart;

my $why = no_state();
my $seed = $ENV{STRESS_SEED} // $$;
my @all = (qw(--crash 1.5 --stop 4 --upgrade 2 --reload 1 --kill 4 --seconds),
           $ENV{STRESS_SECONDS} // 10);

my @ill = (qw(--disk 2 --crash 2.5 --reload 3 --kill 4 --rate 30 --seconds),
           $ENV{STRESS_SECONDS} // 10);

my @runs = (
    [ 'no file, all killed', qw(--state none --crash 1 --blows 3) ],
    [ 'no file, stopped and started', qw(--state none --stop 1 --blows 2) ],
    [ 'no file, replaced', qw(--state none --upgrade 1 --blows 2) ],
    $why ? () : map([ $_, '--state', $_, @all ], qw(strict batched)),
    $why ? () : [ 'batched, ill disks', '--state', 'batched', @ill, '--stop', 6 ],
    $why ? () : [ 'strict, ill disks', '--state', 'strict', @ill, '--upgrade', 5 ],
    $why ? () : [ 'local, which forgets',
                  qw(--state batched --local --disk 1 --crash 1.5 --blows 2) ],
);

diag("seed $seed");

# each says what it saw when it has ended

for (@runs) {
    my ($name, @options) = @$_;

    open my $out, '-|', "exec '$^X' '$FindBin::Bin/stress/run' @options"
                        . " --seed $seed 2>&1" or die "t/stress/run: $!";
    push @$_, $out;
}

for (@runs) {
    my ($name, $out) = @$_[0, -1];
    my @said = <$out>;

    ok(close $out, "$name: as promised") or diag(@said);
    note(@said);
}

SKIP: {
    skip("no file: $why", 1) if $why;
    pass('in all modes');
}

done_testing();
