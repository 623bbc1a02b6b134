#!/usr/bin/perl

# src/store/redis/*.lua on a real server: what they answer and leave behind,
# against a model; and that of many who race for a token one has it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

use Resp;

plan(skip_all => 'no redis-server') if !Resp::servers();

my $seed = $ENV{TEST_SEED} // int(time * 1000) % 100_000;
my $steps = $ENV{TEST_STEPS} // 6000;
srand $seed;

# --- what is sent -------------------------------------------------------------

# as the library has them

my %script = map { my ($name, $bytes) = /redis_(\w+)_lua\[\] = \{(.*)/s;
                   defined $name ? ($name => join '', map chr hex, $bytes =~ /0x(..)/g) : () }
             split /^static /m, `sh $FindBin::Bin/../util/embed $FindBin::Bin/../src/store/redis/*.lua`;

# Writes since the server began: each one counts for WAIT.
sub changes {
    my ($redis) = @_;

    return $redis->command('INFO', 'persistence') =~ /^rdb_changes_since_last_save:(\d+)/m ? $1 : die;
}

sub run {
    my ($redis, $name, $key, @args) = @_;

    return $redis->command('EVAL', $script{$name}, 1, $key, @args);
}

sub head {
    my ($state, $c) = @_;

    return pack 'a2 a C Q> Q> Q> Q> Q> Q> Q> N N a32 a16 a4 a4 a4 a16', 'I2', $state, 1,
                $c->{instance}, $c->{sequence}, $c->{fence} // 0, 0, 0, 0, $c->{window} // 100_000, $c->{status} // 0,
                $c->{replays} // 0, $c->{fp} // 'f', $c->{identity} // 'me', ('h') x 3, 'mark';
}

sub unhead {
    my ($value) = @_;

    my %r;
    @r{qw(format state form instance sequence fence lease recorded ends window status replays fp identity)} =
        unpack 'a2 a C Q> Q> Q> Q> Q> Q> Q> N N Z32 Z16', $value;
    $r{response} = substr $value, 144;
    return \%r;
}

my $never = 2 ** 53;

sub claim {
    my ($redis, $key, $c, %with) = @_;

    return run($redis, 'claim', $key, head('P', $c), $with{since} // 0,
               $with{lease} // 100_000, 0, 0, $with{keep} // 86_400_000,
               $with{flags} // '', 'PUBLISH', $with{not_after} // $never);
}

sub put {
    my ($redis, $key, $state, $c, %with) = @_;

    return run($redis, 'put', $key, head($state, $c), $with{response} // '',
               $with{lease} // 100_000, $with{age} // 0, $with{left} // 100_000,
               $with{keep} // 100_000, $with{known} // 'k', 'PUBLISH',
               $with{not_after} // $never);
}

sub release {
    my ($redis, $key, $c, $freed) = @_;

    return run($redis, 'release', $key, head('P', $c), 'PUBLISH', $freed ? 'f' : '-');
}

sub forget {
    my ($redis, $key, $c, %with) = @_;

    return run($redis, 'forget', $key, head('P', $c), 100_000, 'PUBLISH',
               $with{not_after} // $never);
}


# --- the model ----------------------------------------------------------------

# Two machines and few tokens.  A lease is over when it is made to be; who has
# claimed goes on, is resent, comes late, or gives up, in any order.

sub model {
    my ($server) = @_;

    my $redis = $server->connect;
    my (%is, %claims, %answers, %fence, %gone, $sequence);
    my $wrong = 0;

    for my $step (1 .. $steps) {
        my $key = 'm:' . int rand 4;
        my $is = $is{$key};
        my $mine = 1 + int rand 2;
        my $own = $is && $is->{instance} == $mine;
        my @old = @{$claims{$key} // []};
        my ($op, $want, $reply, $after) = (int rand 100, '?');

        $after = $is && { %$is };

        if ($op < 40) {
            my $c = { instance => $mine, sequence => ++$sequence, fp => rand() < .8 ? 'f' : 'g' };
            my ($retry, $old, $late) = map rand() < $_, .5, .1, .1;

            # one is sent again, or comes when a later one was made

            $c = { %{$old[rand @old]} } if @old && rand() < .4;

            my $since = rand() < .1 ? $sequence + 1 : 0;
            my $free = !$is || $is->{state} eq 'F';
            my $doubt = $is && $is->{state} eq 'U';
            my ($again, $newer, $taken);

            if ($is && $is->{state} eq 'P') {
                my $same = $is->{instance} == $c->{instance};
                $again = $same && ($is->{sequence} == $c->{sequence} || $is->{sequence} >= $since);
                $newer = $again && $is->{sequence} > $c->{sequence};
                $doubt = !$again && ($same || $is->{over});
                $again &&= !$newer;

                # what was in doubt before, and given up, is so again

                $taken = $again && $is->{status};

                if ($taken && $is->{sequence} != $c->{sequence}) {
                    $doubt = 1;
                    $taken = $again = 0;
                }

                $free = $again && $old && !$taken;
            }

            my $may = $doubt && $retry && $is->{fp} eq $c->{fp};

            $want = $free && $old ? 'A'
                  : $may && $is->{instance} == $c->{instance} && $is->{sequence} >= $c->{sequence} ? 'X'
                  : $free || $again || $may ? $late ? 'L' : $may || $taken ? 'D' : 'C'
                  : 'B';

            if ($want =~ /[CD]/) {
                $after = { %$c, state => 'P', status => $want eq 'D' ? 1 : 0, over => 0, response => '' };
                push @{$claims{$key}}, $c;

            } elsif ($want eq 'B' && $doubt && $is->{state} eq 'P') {
                $after->{state} = 'U';
                $after->{before} = $is->{status};
                $after->{status} = 0;
            }

            $reply = claim($redis, $key, $c, since => $since, not_after => $late ? 1 : $never,
                           flags => ($retry ? 'r' : '') . ($old ? 'o' : ''));

            # the fence is higher than any before, but for the same claim once more

            if ($want =~ /[CD]/ && ref $reply) {
                my $same = $is && $is->{state} eq 'P' && $is->{instance} == $c->{instance}
                           && $is->{sequence} == $c->{sequence};
                my $last = $fence{$key} // 0;

                $wrong += !ok(0, "step $step: fence $reply->[2] behind $last")
                    if $same ? $reply->[2] != $last : $reply->[2] <= $last;
                $fence{$key} = $reply->[2];
            }

            if ($want eq 'B' && ref $reply) {
                my $got = unhead($reply->[2]);
                $wrong += !is("$got->{state} $got->{instance} $got->{sequence}",
                              "$after->{state} $after->{instance} $after->{sequence}", "step $step: found")
                    if "$got->{state} $got->{instance} $got->{sequence}"
                       ne "$after->{state} $after->{instance} $after->{sequence}";
            }

        } elsif ($op < 75) {
            next if !@old;

            my $c = $old[rand @old];
            my $what = (qw(P P D N U))[rand 5];
            my ($known, $late, $lapse) = map rand() < $_, .8, .05, .3;
            my $cmp = $is && $is->{sequence} <=> $c->{sequence};

            # what is forgotten stays for a lease

            $lapse = 0 if $is && $is->{state} eq 'F';

            my $same = $is && $is->{instance} == $c->{instance};

            my $status = $what eq 'P' ? int rand 2 : 504;
            my $gone = !$is && $gone{$key} && $gone{$key}{instance} == $c->{instance}
                       && $gone{$key}{sequence} >= $c->{sequence};

            $want = $late ? 'L'
                  : $gone && $gone{$key}{forgotten} ? 'A'
                  : $gone && $what eq 'P' ? 'S'
                  : !$is ? $known ? 'T' : 'O'
                  : $is->{state} eq 'F' ? $same && $cmp >= 0 ? 'S' : 'O'
                  : !$same || $cmp > 0 ? 'S'
                  : $what =~ /[PU]/ && $is->{state} =~ /[DN]/ ? 'S'
                  : $what eq 'P' && $is->{state} eq 'U' && !($cmp && $status) ? $cmp ? 'S' : 'A'
                  : 'O';

            my $response = $what =~ /[DU]/ ? 'r' x int rand 300 : '';

            $after = { %$c, state => $what, over => $lapse, response => $response, status => $status }
                if $want =~ /[OT]/;

            $reply = put($redis, $key, $what, { %$c, status => $status }, response => $response,
                         lease => $what eq 'P' && $lapse ? 0 : 100_000,
                         not_after => $late ? 1 : $never, known => $known ? 'k' : '');

        } elsif ($op < 90) {
            next if !@old;

            my $c = $old[rand @old];
            my $cmp = $is && $is->{sequence} <=> $c->{sequence};
            my $freed = rand() < .3;

            $want = $is && $is->{instance} == $c->{instance}
                    && ($is->{state} eq 'P' && $cmp <= 0
                        || $is->{state} eq 'U' && $cmp == 0 && ($freed || !$is->{before}))
                    ? 'O' : 'A';

            if ($want eq 'O') {
                $after = $is->{state} eq 'P' && $is->{status} && !($freed && $cmp == 0)
                         ? { %$is, state => 'U', status => 0, before => 1, response => '' } : undef;
            }

            $reply = release($redis, $key, $c, $freed);

        } elsif ($op < 97) {
            my $upto = @old ? $old[rand @old]{sequence} : $sequence // 0;
            my $late = rand() < .2;

            $want = !$is ? 'A' : $late ? 'L'
                  : $is->{state} eq 'F' || ($own && $is->{sequence} > $upto) ? 'A' : 'O';

            if ($want eq 'O') {
                $after = $is->{state} =~ /[PU]/ ? { %$is, state => 'F', response => '' } : undef;
            }

            $reply = forget($redis, $key, { instance => $mine, sequence => $upto },
                            not_after => $late ? 1 : $never);

        } else {
            $want = $is && $is->{state} ne 'F' ? 'B' : 'A';
            $reply = run($redis, 'find', $key);
        }

        my $got = ref $reply ? $reply->[0] : $reply;
        my $value = $redis->command('GET', $key);
        my $left = defined $value ? unhead($value) : undef;

        $wrong += !is($left->{fence}, $fence{$key}, "step $step: the fence that is kept")
            if $left && $left->{fence} != ($fence{$key} // 0);

        # the fence of what is no more

        undef $left if $left && $left->{state} eq 'R';

        my @of = qw(state instance sequence status);
        my $stands = $left ? join ' ', @$left{@of}, length $left->{response} : 'nothing';
        my $should = $after ? join ' ', @$after{@of}, length($after->{response} // '') : 'nothing';

        # what has become of one in doubt has no response

        $should =~ s/ \d+$/ 0/ if $after && $after->{state} eq 'U' && $is && $is->{state} eq 'P'
                                  && $want eq 'B';

        $answers{$want}++;

        if ($got ne $want || $stands ne $should) {
            is("$got, $stands", "$want, $should", "step $step, seed $seed");
            last if ++$wrong > 3;
        }

        # what is left of it says whose it was

        $gone{$key} = { %$is, forgotten => $op >= 90 } if $is && !$after;
        $is{$key} = $after;
    }

    is($wrong, 0, "$steps steps as the model says, seed $seed");
    is(join('', sort keys %answers), 'ABCDLOSTX', '... each answer among them')
        or diag(explain(\%answers));
}


# --- one at a time ------------------------------------------------------------

sub traps {
    my ($server) = @_;

    my $redis = $server->connect;
    my %c = (instance => 1, sequence => 5);

    # how long a key stays, and what its times are

    claim($redis, 't:p', \%c);
    ok($redis->command('PTTL', 't:p') > 86_000_000, 'a pending one stays for a day');

    my ($s, $us) = @{$redis->command('TIME')};
    my $p = unhead($redis->command('GET', 't:p'));
    my $now = $s * 1000 + $us / 1000;
    ok(abs($p->{recorded} - $now) < 60_000 && $p->{lease} - $p->{recorded} == 100_000,
       '... with the server\'s time') or diag(explain($p), $now);

    put($redis, 't:p', 'D', { %c, window => 500_000 }, left => 300_000, keep => 300_000, age => 200_000,
        response => "a\0\r\n\xff");
    my $ttl = $redis->command('PTTL', 't:p');
    ok($ttl > 100_000 && $ttl <= 300_000, 'what is done stays for its window') or diag($ttl);
    my $d = unhead($redis->command('GET', 't:p'));
    is($d->{response}, "a\0\r\n\xff", '... with every byte of the response');
    is($d->{ends} - $d->{recorded}, 500_000, '... recorded when it was');

    # a lease that is over, by whoever meets it

    claim($redis, 't:u', { %c, window => 700_000 }, lease => 1);
    sleep 0.01;
    my $found = claim($redis, 't:u', { instance => 2, sequence => 9 });
    is($found->[0] . unhead($found->[2])->{state}, 'BU', 'one whose lease is over is in doubt');
    $ttl = $redis->command('PTTL', 't:u');
    ok($ttl > 500_000 && $ttl <= 700_000, '... for its window') or diag($ttl);
    is(put($redis, 't:u', 'P', \%c)->[0], 'A', '... whatever was sent before its owner died, and comes late');
    is(claim($redis, 't:u', { %c, sequence => 6 })->[0], 'B', '... and is not executed again');

    # the window of one that never ended is over

    put($redis, 't:w', 'D', \%c, left => 5, keep => 5);
    sleep 0.02;
    is(claim($redis, 't:w', { instance => 2, sequence => 9 })->[0], 'C', 'a window that is over is none');

    is(put($redis, 't:v', 'D', \%c, left => 1, keep => 1)->[0], 'O',
       '... and what it kept is not lost, when it is told once more');

    # a key may outlive its window by a few milliseconds

    for my $state (qw(D N U)) {
        put($redis, 't:o', $state, \%c, left => 0);
        is(run($redis, 'find', 't:o')->[0], 'A', "$state: a window that is over, of a key that is there");
        is(@{run($redis, 'list', 't:o', 0, 't:o', 1000)}, 3, '... is not listed');
        is(claim($redis, 't:o', { instance => 2, sequence => 9 }, flags => 'o')->[0], 'A', '... is none');
        is(claim($redis, 't:o', { instance => 2, sequence => 9 })->[0], 'C', '... and may be claimed');
        $redis->command('DEL', 't:o');
    }

    # who asked for nobody in particular; numbers beyond 2^53 don't come, large ones do

    my $large = 2 ** 53 - 2;
    put($redis, 't:i', 'U', { %c, identity => '', sequence => $large, fence => $large });
    is(claim($redis, 't:i', { instance => 1, sequence => $large }, flags => 'r')->[0], 'X',
       'its own that comes late does not take it');
    my $taken = claim($redis, 't:i', { instance => 2, sequence => 1 }, flags => 'r');
    is("$taken->[0] $taken->[2]", 'D ' . ($large + 1), '... but another one, from nobody: with a higher fence');
    put($redis, 't:j', 'U', \%c);
    is(claim($redis, 't:j', { instance => 2, sequence => 9, identity => 'you' }, flags => 'r')->[0], 'B',
       'what is somebody else\'s is not taken over');

    # one that took over what was in doubt, and is released

    put($redis, 't:d', 'U', \%c, left => 100_000);
    my %d = (instance => 2, sequence => 9, window => 600_000);
    is(claim($redis, 't:d', \%d, flags => 'r')->[0], 'D', 'what was in doubt is claimed');
    is(release($redis, 't:d', \%d)->[0], 'O', '... and released');
    is(unhead($redis->command('GET', 't:d'))->{state}, 'U', '... is in doubt again');
    $ttl = $redis->command('PTTL', 't:d');
    ok($ttl > 500_000 && $ttl <= 600_000, '... for its window') or diag($ttl);
    my $value = $redis->command('GET', 't:d');
    is(release($redis, 't:d', \%d)->[0], 'A', '... and released once more');
    is($redis->command('GET', 't:d'), $value, '... is as it was');
    is(claim($redis, 't:d', \%d, flags => 'ro')->[0], 'X', '... and is claimed no more by that one');
    $d{sequence}++;
    is(claim($redis, 't:d', \%d, flags => 'ro')->[0], 'D', '... but by another');
    is(claim($redis, 't:d', \%d, flags => 'ro')->[0], 'D', '... which may be sent twice');
    is(release($redis, 't:d', \%d, 1)->[0], 'O', 'one that is settled');
    is(run($redis, 'find', 't:d')->[0], 'A', '... is fresh');

    # the answer to a claim was lost: it was sent again, and executed, or not

    claim($redis, 't:l', \%c);
    is(run($redis, 'release', 't:l', head('P', \%c), 'PUBLISH', 'l')->[0], 'O',
       'a claim whose answer was lost is released');
    put($redis, 't:m', 'U', \%c);
    is(run($redis, 'release', 't:m', head('P', \%c), 'PUBLISH', 'l')->[0], 'A',
       '... but no doubt that it left behind when it was sent again');
    is(release($redis, 't:m', \%c)->[0], 'O', '... which its owner may release');

    # who hears that another one is bound forgets its own: replicas must have the other one by then

    claim($redis, 't:s', \%c);
    my ($was, $changes) = ($redis->command('GET', 't:s'), changes($redis));
    is(put($redis, 't:s', 'D', { instance => 2, sequence => 5 })->[0], 'S', 'an outcome for which another one is bound');
    cmp_ok(changes($redis), '>', $changes, '... writes that again, as WAIT counts writes');
    is($redis->command('GET', 't:s'), $was, '... as it was');
    cmp_ok($redis->command('PTTL', 't:s'), '>', 0, '... with its end');

    # a claim that was made without asking does not hide a doubt

    put($redis, 't:h', 'U', \%c);
    my %h = (instance => 1, sequence => 6);
    is(put($redis, 't:h', 'P', \%h)->[0], 'S', 'what was in doubt is not claimed by who does not know of that');
    is(release($redis, 't:h', \%h, 1)->[0], 'A', '... nor released');
    is(put($redis, 't:h', 'P', { %h, status => 1 })->[0], 'O', '... but claimed by who does');
    is(put($redis, 't:h', 'D', \%h)->[0], 'O', '... and has an outcome');

    # ... which is sent once more, and comes behind a hand that forgets it

    is(forget($redis, 't:h', \%h)->[0], 'O', '... that is forgotten by hand');
    is(put($redis, 't:h', 'D', \%h)->[0], 'A', '... and comes late: it stays forgotten');
    is(run($redis, 'find', 't:h')->[0], 'A', '... so the token is fresh');
    is(put($redis, 't:h', 'D', { %h, sequence => 7 })->[0], 'T', '... for a newer one');

    # fences: the server's clock, but never lower than what is known, for a minute

    my $at = sub { my ($s, $us) = @{$redis->command('TIME')}; return $s * 1_000_000 + $us };
    my $before = $at->();
    my ($c, undef, $fence) = @{claim($redis, 't:n', \%c)};
    ok($fence >= $before && $fence <= $at->(), 'a fence is the server\'s time in microseconds');
    is(claim($redis, 't:n', \%c)->[2], $fence, '... the same for what is sent once more');

    for ([release => sub { release($redis, 't:n', \%c) }],
         [forgotten => sub { forget($redis, 't:n', \%c) }],
         ['done and forgotten' => sub { put($redis, 't:n', 'D', { %c, fence => $fence });
                                        forget($redis, 't:n', \%c) }])
    {
        my ($name, $how) = @$_;
        my $high = $at->() + 3_600_000_000;

        put($redis, 't:n', 'P', { %c, fence => $high });
        is($how->()->[0], 'O', "$name: what has the fence of a clock that was fast");

        $ttl = $redis->command('PTTL', 't:n');
        ok($ttl > 30_000 && $ttl <= 100_000, '... leaves it for a minute') or diag($ttl);
        is(run($redis, 'find', 't:n')->[0], 'A', '... is no record');
        is(@{run($redis, 'list', 't:n', 0, 't:n', 1000)}, 3, '... nor listed');
        is(forget($redis, 't:n', \%c)->[0], 'A', '... nor to be forgotten');
        is(release($redis, 't:n', \%c)->[0], 'A', '... nor to be released');
        is(claim($redis, 't:n', { %c, sequence => 6 }, flags => 'o')->[0], 'A', '... but absent');

        my $next = claim($redis, 't:n', { instance => 2, sequence => 1 });
        is("@$next[0, 2]", 'C ' . ($high + 1), '... and the next claim has a higher one');
        $redis->command('DEL', 't:n');
        claim($redis, 't:n', \%c);
    }

    # what is not ours

    for my $foreign ('I1' . 'x' x 200, 'short', 'x' x 200) {
        $redis->command('SET', 't:f', $foreign);
        is(join(' ', map $_->[0], claim($redis, 't:f', \%c), put($redis, 't:f', 'D', \%c),
                release($redis, 't:f', \%c), forget($redis, 't:f', \%c),
                run($redis, 'find', 't:f')), 'V V V V V', 'a foreign value');
        is($redis->command('GET', 't:f'), $foreign, '... stays');
    }

    $redis->command('DEL', 't:f');
    $redis->command('LPUSH', 't:f', 'x');
    is(join(' ', map $_->[0], claim($redis, 't:f', \%c), put($redis, 't:f', 'D', \%c),
            release($redis, 't:f', \%c), forget($redis, 't:f', \%c),
            run($redis, 'find', 't:f')), 'V V V V V', 'a list');

    # who hears of it

    my $ear = $server->connect;
    $ear->command('SUBSCRIBE', 't:e');
    claim($redis, 't:e', \%c);
    put($redis, 't:e', 'P', \%c);
    is($ear->heard(0.1), 0, 'nobody hears of a claim');
    put($redis, 't:e', 'D', \%c);
    is($ear->heard(120), 1, '... but of an outcome');
    forget($redis, 't:e', \%c);
    is($ear->heard(120), 1, '... and of its end');
    claim($redis, 't:e', \%c);
    release($redis, 't:e', \%c);
    is($ear->heard(120), 1, 'a release is heard of');

    # without memory nothing is claimed, and what happened is told all the same

    claim($redis, 't:full', \%c);
    $redis->command(qw(CONFIG SET maxmemory 1));
    like(claim($redis, 't:full2', \%c), qr/^OOM/, 'no memory for a claim');
    is(put($redis, 't:full', 'D', \%c, response => 'x' x 1000)->[0], 'O', '... but for an outcome');
    is(claim($redis, 't:full', { instance => 2, sequence => 9 })->[0], 'B', '... and a look at it');
    put($redis, 't:doubt', 'P', \%c, lease => 0);
    $found = claim($redis, 't:doubt', { instance => 2, sequence => 9 });
    is($found->[0] . unhead($found->[2])->{state}, 'BU', '... and for a doubt');
    is(release($redis, 't:doubt', \%c)->[0], 'O', '... and for a release');
    $redis->command(qw(CONFIG SET maxmemory 0));
}


# --- many at once -------------------------------------------------------------

# Each of six wants one of forty tokens, is told twice in three that it has it,
# and counts who is at work on it.

sub race {
    my ($server) = @_;

    my $until = time + ($ENV{TEST_RACE} // 3);
    my @pids;

    for my $n (1 .. 6) {
        my $pid = fork // die "fork: $!";

        if ($pid == 0) {
            srand $seed + $n;
            my ($one, $two) = map $server->connect, 1, 2;
            my $sequence = $n;

            # on a busy machine for longer
            while (time < $until
                   || time < $until + 120 && ($one->command('GET', 'executions') // 0) <= 500)
            {
                my $key = 'r:' . int rand 40;
                my $c = { instance => $n, sequence => $sequence += 6 };
                my $twice = rand() < .3;

                my $got = claim($one, $key, $c)->[0];
                my $again = $twice ? claim($two, $key, $c)->[0] : $got;

                next if $got ne 'C';

                $one->command('INCR', 'doubles') if $again ne 'C';
                $one->command('INCR', 'doubles') if $one->command('INCR', "busy:$key") > 1;
                $one->command('INCR', 'executions');
                put($two, $key, 'P', $c) if rand() < .2;
                $two->command('DECR', "busy:$key");

                if (rand() < .5) {
                    release($two, $key, $c);
                    release($one, $key, $c) if $twice;

                } else {
                    put($two, $key, 'D', $c);
                    put($one, $key, 'D', $c) if $twice;
                    forget($one, $key, $c);
                }
            }

            POSIX::_exit(0);
        }

        push @pids, $pid;
    }

    waitpid $_, 0 for @pids;

    my $redis = $server->connect;
    my $executions = $redis->command('GET', 'executions');

    cmp_ok($executions, '>', 500, "$executions executions by six who race");
    is($redis->command('GET', 'doubles') // 0, 0, '... no two at once');
}


# --- what a server lets them do ------------------------------------------------

sub tried {
    my ($server) = @_;

    my $redis = $server->connect;
    my $try = sub {
        my ($before) = @_;

        return join ' ', @{$redis->command('EVAL', "$before $script{try}", 0, 'zone:stamp', 'PUBLISH')};
    };
    my $without = sub { "local redis = { acl_check_cmd = $_[0] }" };

    is($try->(''), 'O', 'nothing is missing');
    is($try->($without->('nil')), 'N it is older than Redis 7.0', 'Redis 6');
    is($try->($without->('function(c) if c == "PEXPIRE" then error("no such command") end return true end')),
       'N its user may not PEXPIRE "zone:stamp"', 'a command that was renamed');
    is($try->($without->('function(c) return c ~= "SET" and c ~= "PUBLISH" end')),
       'N its user may not SET "zone:stamp"', 'a right');
    is($try->($without->('function(c) return c ~= "PUBLISH" end')), 'W PUBLISH', 'one that is no need');

    # each command of the scripts that change something is among those that are tried
    my %used;

    for my $name (qw(claim find put release forget stamp)) {
        $used{$_} = 1 for $script{$name} =~ /'([A-Z]{3,})'/g;
    }

    like($try->($without->('function() return false end')), qr/\b$_\b/, "$_ is tried") for sort keys %used;
}


# --- which server it is ------------------------------------------------------

sub stamps {
    my ($server) = @_;

    my $redis = $server->connect;
    my $id = 0;
    my $asked = sub {
        my ($known, $least, $flag, $head) = @_;
        return run($redis, 'stamp', 't:s', $head // '2 k', $known, $least, ++$id, $flag // '-');
    };
    my $is = sub { split / /, $redis->command('GET', 't:s') };
    my $set = sub { $redis->command('SET', 't:s', join ' ', @_) };

    $redis->command('FLUSHALL');

    my ($code, $time, undef, undef, $one, undef, $beat) = @{$asked->('', 0)};
    is($code, 'O', 'a stamp is made');
    like($one, qr/^[0-9a-f]{16}$/, '... by chance');
    is($beat, $time, '... at its time');
    is($asked->('', 0)->[4], $one, '... once');
    is($asked->($one, $beat)->[0], 'O', '... is known');
    is(join(' ', @{$asked->('f' x 16, 1)}[0, 2, 3, 4, 6]), 'S ' . 'f' x 16 . " 1 $one 0", '... or another one');
    is($asked->('f' x 16, 0)->[0], 'S', '... whatever was acknowledged');
    is($asked->('', 0)->[4], $one, '... but who knows none takes it');
    is($asked->($one, $beat, '-', '2 l')->[0], 'K', 'another digest key');
    is($asked->($one, $beat, 'a', '2 l')->[0], 'K', '... which can\'t be agreed to');

    # its beat

    my @is = $is->();
    my $at = sub { $set->(@is[0 .. 2], $is[3] + $_[0], $is[4] + $_[1]) };

    $at->(-2000, -2000);
    is(join(' ', @{$asked->($one, $is[3])}[0, 5]), "O @{[$is[3] - 2000]}", 'it is 2 s behind');
    ok(($is->())[3] >= $is[3], '... and is not any more');
    $at->(-2001, -2001);
    is($asked->($one, $is[3])->[0], 'P', '... or more');
    is(join(' ', $is->()), join(' ', @is[0 .. 2], $is[3] - 2001, $is[4] - 2001), '... and stays');
    $at->(3600_000, 3600_000);
    ok($asked->($one, 1)->[6] == $is[3] + 3600_000, 'its clock is set back: the beat is not');
    $at->(3600_000, -700);
    my $on = $asked->($one, 1)->[6] - $is[3] - 3600_000;
    ok($on >= 700 && $on < 60_000, '... and goes on') or diag($on);
    $at->(0, 0);
    ok($asked->($one, 1, 'w')->[6] >= $is[3], '... or is written all the same');

    # somebody agrees

    $at->(-9000, -9000);
    my $two = $asked->($one, $is[3], 'a')->[4];
    isnt($two, $one, 'what was set back is another one then');
    is(join(' ', @{$asked->($one, $is[3])}[0, 4]), "O $two", '... whom the others follow');
    is($asked->($two, $is[3])->[0], 'O', '... as it is');
    $redis->command('DEL', 't:s');
    is($asked->($two, $is[3])->[0], 'N', 'it is gone');
    is($asked->($two, 0)->[0], 'N', '... whatever was acknowledged');
    is($redis->command('EXISTS', 't:s'), 0, '... and made by nobody who knew it');
    my $three = $asked->($two, $is[3], 'a')->[4];
    is(join(' ', @{$asked->($two, $is[3])}[0, 4]), "O $three", '... until somebody agrees');
    is(join(' ', @{$asked->($one, $is[3], 'a')}[0, 4]), "A $three", 'who knew another one agrees to this one');
    is($asked->($two, $is[3])->[4], $three, '... and the others still follow');
    is($asked->($_, $is[3], 'a')->[4], $three, "$_ agrees") for map { $_ x 16 } 'a' .. 'f';
    is(scalar(@{[$is->()]}), 9, '... so many at most');

    # what the others compare

    my @value = $is->();
    my $meant = sub {
        my ($script, $head, $least) = @_;
        return $redis->command('EVAL', $script{$script}, 2, 't:m', 't:s', 'I2P' . "\1" . 'x' x 140, ('0') x 8, $head, $least)->[0];
    };

    for my $script (qw(claim put release)) {
        is($meant->($script, "2 k $three", $value[3] + 1), 'I', "$script: it is older");
        is($meant->($script, '2 k ' . 'f' x 16, 0), 'I', '... or another one');
        is($meant->($script, "2 l $three", 0), 'I', '... or of another key');
        isnt($meant->($script, "2 k $three", $value[3]), 'I', '... or not');
    }

    is($redis->command('EXISTS', 't:m'), 0, '... and nothing was written');
    $redis->command('DEL', 't:s');
    is($meant->('claim', "2 k $three", 0), 'I', '... or none');
    $redis->command('LPUSH', 't:s', 'x');
    is($meant->('claim', "2 k $three", 0), 'I', '... or a list');
    is($asked->($three, 1)->[0], 'K', '... which is no stamp');
    is($asked->($three, 1, 'a')->[0], 'K', '... whoever agrees');
}


# --- all of it ---------------------------------------------------------------

for my $program (Resp::servers()) {
    my $server = Resp->start(program => $program);

    subtest $program => sub {
        model($server);
        traps($server);
        stamps($server);
        race($server);
        tried($server);
    };
}

done_testing();
