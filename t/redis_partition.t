#!/usr/bin/perl

# Two nginx over one Redis, of which one is cut off: what it says is swallowed, or
# what it is told, or comes late, or its connections break; while it claims, while
# it executes, while it waits. Their clocks are two hours apart.

use lib 't/lib';
use Between;
use Idempotency;
use Redis;
use Restart;
use Time::HiRes qw(sleep time);

plan(skip_all => 'no redis-server') if !Redis->programs;

my $redis = Redis->new(args => [qw(--appendonly yes --appendfsync always)]);

my $server = <<'EOC';
    idempotency zone=z;
    idempotency_wait_timeout 10m;
    idempotency_lease 1h;
    proxy_read_timeout 10m;
    add_header X-Status $idempotency_status always;
    add_header X-Times "$idempotency_age $idempotency_expires" always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /window { idempotency_window 3s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /brief { idempotency_lease 2s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /steady { idempotency_lease 6s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry {
        idempotency_lease 2s;
        idempotency_in_doubt retry;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my ($to_a, $to_b) = map Between->new($redis->port), 1, 2;
my ($a, $b) = map {
    my ($between, $wrong) = @$_;

    outliving(workers => 1, allow => qr/redis "r" of zone "z" is unavailable|were bound by another one as well/,
              env => clock_wrong($wrong), server => $server,
              zone => "idempotency_zone zone=z:8m redis=r;\nidempotency_redis r { server 127.0.0.1:"
                      . $between->port . "; timeout 1s; connect_timeout 1s; }\n");
} [$to_a, 3600], [$to_b, -3600];

my @ways = qw(late deaf mute away);

sub uri {
    my ($id, %o) = @_;

    return ($o{at} // '') . "/x?id=$id" . ($o{gate} ? '&gate=1' : '');
}

sub at { my ($n, $id, %o) = @_; return $n->post(uri($id, %o), key => $id, body => 'b') }
sub asked { my ($n, $id, %o) = @_; return $n->start('POST', uri($id, %o), key => $id, body => 'b') }

# Who is told to come again does: on a busy machine an answer may be too late.

sub comes_again {
    my ($n, $id, %o) = @_;

    my $r;
    until_true { ($r = at($n, $id, %o))->{status} != 503 };

    return $r;
}

# ... what it was told, or is then.

sub in_the_end {
    my ($c, $n, $id, %o) = @_;

    my $r = $c->response;

    return told($r->{status} == 503 ? comes_again($n, $id, %o) : $r);
}

my $warm = 0;

sub well {
    for my $n (@_) {
        until_true { told(at($n, 'well' . ++$warm)) eq '200 NEW' };
    }
}

# An owner under way.

sub owner {
    my ($n, $id, %o) = @_;

    until_true { told(at($n, "before-$id")) =~ /^200/ };

    my $c = asked($n, $id, %o, gate => 1);
    held($id);

    return $c;
}


# One who waits elsewhere, and listens.

sub waits {
    my ($n, $id, %o) = @_;

    my %before = map { $_ => 1 } @{$redis->command(qw(PUBSUB CHANNELS idem:z:*))};
    my $c = asked($n, $id, %o, gate => 1);

    until_true { grep !$before{$_}, @{$redis->command(qw(PUBSUB CHANNELS idem:z:*))} };

    return $c;
}


# --- clocks -----------------------------------------------------------------------

well($a, $b);

for (['fast', $a, $b], ['slow', $b, $a]) {
    my ($name, $first, $then) = @$_;
    my $begun = time;

    is(told(comes_again($first, $name)), '200 NEW', "executed where the clock is $name");

    my $r = until_true { my $r = comes_again($then, $name); told($r) eq '200 REPLAYED' && $r };
    my ($age, $expires) = split ' ', $r->header('X-Times');

    is(told($r), '200 REPLAYED', '... replayed where it is not');
    cmp_ok(abs($age), '<=', 1 + time - $begun, '... as old as it is');
    cmp_ok(abs(86400 - $age - $expires), '<=', 2, '... and for as long as it is');

    $begun = time;
    is(told(comes_again($first, "w-$name", at => '/window')), '200 NEW', '... a window of three seconds');
    ok(until_true { comes_again($then, "w-$name", at => '/window')->{body} =~ /^exec=2 / }, '... ends there');
    cmp_ok(time - $begun, '>=', 3, '... not before its time');
    ok(until_true { comes_again($first, "w-$name", at => '/window')->{body} =~ /^exec=[2-9]/ }, '... and here');
}

# longer than a lease, which is renewed

{
    my @owners = map owner($_->[0], $_->[1], at => '/steady'), [$a, 'long-a'], [$b, 'long-b'];
    my @waiting = map asked($_->[0], $_->[1], at => '/steady', gate => 1), [$b, 'long-a'], [$a, 'long-b'];

    sleep 8;
    ok(!grep($_->readable(0), @waiting), 'who lives keeps its claims, whatever the clocks say');
    go($_) for qw(long-a long-b);
    is(join(', ', map told($_->response), @owners, @waiting), '200 NEW, 200 NEW, 200 WAITED, 200 WAITED', '... until they are done');
}


# --- who claims -------------------------------------------------------------------

for my $how (@ways) {
    my $id = "claim-$how";

    well($a, $b);
    $to_a->now($how);

    is(told(at($a, $id)), '503 UNAVAILABLE', "$how: a claim is refused");

    # a claim that arrived, and of which nobody was told, stands until it is given back

    my $there = $how eq 'mute' ? asked($b, $id) : undef;

    is(told(comes_again($b, $id)), '200 NEW', '... nobody else is in its way') if !$there;

    is(told(at($a, "$id-2")), '503 UNAVAILABLE', '... nor is anything else passed on');
    is(executions($id), $there ? 0 : 1, '... it is not executed there');

    $to_a->now('flow');

    is(in_the_end($there, $b, $id), '200 NEW', '... nobody else is in its way for longer') if $there;
    ok(until_true { told(at($a, $id)) eq '200 REPLAYED' }, '... and it is replayed there when that is over');
    is(executions($id), 1, '... executed once');
    is(told(comes_again($b, "$id-2")), '200 NEW', '... what was refused is executed');

    # its client may have its answer before the Redis has it
    ok(until_true { told(at($a, "$id-2")) eq '200 REPLAYED' }, '... and replayed there');
    is(executions("$id-2"), 1, '... executed once');
}


# --- who executes -----------------------------------------------------------------

for my $how (@ways) {
    my $id = "outcome-$how";

    well($a, $b);

    my $owner = owner($a, $id);
    my $there = waits($b, $id);

    $to_a->now($how);
    go($id);
    is(told($owner->response), '200 NEW', "$how: an outcome is told to its client");
    is(told(at($a, $id, gate => 1)), '200 REPLAYED', '... and replayed where it is known');
    $to_a->now('flow');
    like(in_the_end($there, $b, $id, gate => 1), qr/^200 (?:WAITED|REPLAYED)$/,
         '... who waits elsewhere has it when that is over');
    is(executions($id), 1, '... executed once');
}

# for longer than a lease

for my $how (@ways) {
    my $id = "lease-$how";

    well($a, $b);

    my $owner = owner($a, $id, at => '/brief');

    $to_a->now($how);
    is(told(comes_again($b, $id, at => '/brief', gate => 1)), '409 IN_DOUBT', "$how for longer than a lease: in doubt elsewhere");
    go($id);
    is(told($owner->response), '200 NEW', '... answered where it is executed');
    $to_a->now('flow');
    ok(until_true { told(at($b, $id, at => '/brief', gate => 1)) eq '200 REPLAYED' }, '... known elsewhere when that is over');
    is(executions($id), 1, '... executed once');
}

# ... and somebody has taken it over

for my $how (@ways) {
    my $id = "retry-$how";

    well($a, $b);

    my $owner = owner($a, $id, at => '/retry');
    my $said = sub { return scalar(() = $a->log =~ /\[alert\].*were bound by another one as well/g) };
    my $before = $said->();

    $to_a->now($how);

    my $other = asked($b, $id, at => '/retry', gate => 1);

    until_true {
        if ($other->readable(0.05) && $other->response->{status} == 503) {
            $other = asked($b, $id, at => '/retry', gate => 1);
        }

        executions($id) == 2;
    };

    go($id);
    is($owner->response->{body}, "exec=1 id=$id\n", "$how with retry: who executes answers");
    is($other->response->{body}, "exec=2 id=$id\n", '... and who took it over');
    is(comes_again($b, $id, at => '/retry', gate => 1)->{body}, "exec=2 id=$id\n", '... whose outcome it is');
    $to_a->now('flow');
    ok(until_true { $said->() > $before }, '... the late one says so');
    is(comes_again($a, $id, at => '/retry', gate => 1)->{body}, "exec=1 id=$id\n", '... and repeats its own to its own');
    is(comes_again($b, $id, at => '/retry', gate => 1)->{body}, "exec=2 id=$id\n", '... and nobody else');
    is(executions($id), 2, '... executed no more');
}


# --- who waits --------------------------------------------------------------------

for my $how (@ways) {
    my $id = "wait-$how";

    well($a, $b);

    my $owner = owner($a, $id);
    my $there = waits($b, $id);

    $to_b->now($how);
    go($id);
    is(told($owner->response), '200 NEW', "$how: somebody else's outcome");
    $to_b->now('flow');
    like(in_the_end($there, $b, $id, gate => 1), qr/^200 (?:WAITED|REPLAYED)$/,
         '... who waits for it has it when that is over, if not before');
    is(executions($id), 1, '... executed once');
}

$_->stop for $a, $b;
done_testing();
