#!/usr/bin/perl

# Several nginx over one Redis, over sentinels and over a cluster, and what befalls
# all of them: the short forms of t/stress/redis, side by side, and its controls.
# util/stress --redis runs the long ones. STRESS_SEED repeats the plan,
# STRESS_SECONDS makes it longer.

# Not in util/test --quick: it takes its time.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Redis;
use Test::More;

my @programs = Redis->programs or plan(skip_all => 'no redis-server');

my $seed = $ENV{STRESS_SEED} // $$;
my $seconds = $ENV{STRESS_SECONDS} // 15;

diag("seed $seed");

my @runs = (
    ['each trouble in turn', '--seconds', $seconds + 5, '--apart', 3600],
    ['a Redis that is emptied, and agreed to', '--seconds', $seconds, '--accept', '--only', '"accept|another|worker|reload|stop"'],
    ['sentinels', '--topology', 'sentinel', '--program', $programs[0], '--seconds', $seconds,
     '--only', '"master|late|worker"'],
    ['a cluster', '--topology', 'cluster', '--program', $programs[-1], '--seconds', $seconds,
     '--only', '"master|slots|worker"'],
);

# each says what it saw when it has ended

sub begun {
    my ($name, @options) = @_;

    open my $out, '-|', "exec '$^X' '$FindBin::Bin/stress/redis' --seed $seed @options 2>&1"
        or die "t/stress/redis: $!";
    return $out;
}

sub ended {
    my ($name, $out) = @_;
    my @said = <$out>;

    ok(close $out, "$name: as promised") or diag(@said);
    note(@said);
}

my @begun = map begun(@$_), @runs;

ended($_->[0], shift @begun) for @runs;

# what must be seen, one after the other

for my $kind (qw(redis stop reload another accept)) {
    my @control = ("a Redis that forgets, $kind", '--seconds', 5, '--clients', 4, '--every', 4, '--control', $kind);

    ended($control[0], begun(@control));
}

done_testing();
