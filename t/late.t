#!/usr/bin/perl

# A store that takes its time: a claim that is not answered, or heard when nobody
# wants it any more; an outcome to which there is no answer. All other tests run
# over such a store as well (TEST_IDEMPOTENCY_STORE=late); here it is told when to
# be silent, so the module is built once more, with fault points.

use lib 't/lib';

BEGIN { $ENV{TEST_IDEMPOTENCY_STORE} = 'late' }

use Faults;
use Idempotency;
use Stress;

my $n = nginx(workers => 2, http => <<'EOC' . crowd(<<'EOC2') . <<'EOC3');
    idempotency_wait_timeout 10m;
    idempotency_lease 10m;
    proxy_read_timeout 10m;
EOC
    idempotency zone=z;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /similar { idempotency_similar reject;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
EOC2
    # the same tokens, by others who would rather execute twice than not at all
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
        server_name localhost;
        idempotency zone=z;
        idempotency_in_doubt retry;
        add_header X-Status $idempotency_status always;

        location / { proxy_pass http://$TEST_NGINX_DEAD; }
    }
EOC3


sub fault { return (headers => ["X-Idempotency-Fault: $_[0]"]) }


# What the store has said so many times more than when it was asked last.

my %seen;

sub late {
    my ($what, $times) = @_;

    $seen{$what} += $times // 1;
    return until_true {
        my $said = () = $n->log =~ /idempotency late: one is $what/g;
        $said >= $seen{$what};
    };
}


# --- a claim that is not answered -------------------------------------------

{
    my @o = ('/x?id=again', key => 'again', body => 'b');

    is(told($n->post(@o, fault('unanswered'))), '200 NEW',
       'granted, not answered: made again, it is the same claim');
    ok(late('unanswered'), '... as the store says');
    is(told($n->post(@o)), '200 REPLAYED', '... recorded as any');
    is(told($n->post(@o, fault('unanswered'))), '200 REPLAYED',
       '... nor is a repeat answered: it asks again');
    ok(late('unanswered'), '... as the store says');
    is(executions('again'), 1, '... executed once');
}

for (['unanswered', 'granted, not answered'], ['slow', 'not heard yet']) {
    my ($what, $name) = @$_;

    for my $left (qw(HTTP/1.1 HTTP/2)) {
        my $id = "left-$what-" . ($left eq 'HTTP/2');
        my @o = ("/x?id=$id", key => $id, body => 'b');
        my ($c, $curl);

        if ($left eq 'HTTP/2') {
            my $url = 'http://127.0.0.1:' . $n->port(1) . $o[0];
            $curl = child(sub {
                exec qw(curl -q -s --noproxy * -o /dev/null
                        --http2-prior-knowledge -d b), $url,
                     map { ('-H', $_) } 'Host: localhost', 'Content-Type:',
                         "Idempotency-Key: $id", "X-Idempotency-Fault: $what";
            });

        } else {
            $c = $n->start(POST => @o, fault($what));
        }

        ok(late($what), "$name, $left: a claim");
        $curl ? kill(KILL => $curl) : $c->reset;

        # whoever comes now finds it pending, until it is released
        is(told($n->post(@o)), '200 NEW', '... its client leaves: released');
        is(told($n->post(@o)), '200 REPLAYED', '... recorded as any');
        is(executions($id), 1, '... executed once');

        # a claim that was heard when nobody wanted it any more is nobody's
        is(told(map { $n->post("/reject?id=$id", key => "$id-$_", body => 'b') } 1 .. 5),
           join(', ', ('200 NEW') x 5), '... others as any');
    }
}

# What was in doubt, and is taken over by one who has not executed it, is so again.

{
    my @o = ('/x?id=doubt&close=1', key => 'doubt', body => 'b');
    my @retry = (@o, port => $n->port(2));

    is(told($n->post(@o)), '502 NEW', 'in doubt: the upstream closed');
    is(told($n->post(@o)), '502 REPLAYED', '... and so it is replayed');
    is(told($n->post(@retry)), '502 NEW', '... taken over, by who can reach no upstream');
    # ... or that the store has not said so: one answer of 32 is lost
    ok($n->wait_log(qr/idempotency outcome released, in doubt again, status 502|it is not known whether the outcome/),
       '... it is logged');

    for my $what (qw(unanswered slow)) {
        is(told($n->post(@o)), '409 IN_DOUBT', '... in doubt again');

        my $c = $n->start(POST => @retry, fault($what));
        ok(late($what), "taken over, $what");
        $c->reset;

        # whoever comes now finds it pending, until it is released
    }

    is(told($n->post(@o)), '409 IN_DOUBT', '... its client leaves: in doubt again');
    is(executions('doubt'), 1, '... executed once');
}

# Those who wait, when who is heard late leaves.

{
    my @o = ('/x?id=crowd', key => 'crowd', body => 'b');
    my $p = parking($n);
    my $c = $n->start(POST => @o, fault('unanswered'));

    ok(late('unanswered'), 'granted, not answered: a claim');

    my @w = map { $n->start(POST => @o) } 1 .. 5;
    # parked() wants all that ask to be heard, and one is not
    ok($n->wait_log(qr/late: some are unheard/), '... and others ask');
    $c->reset;

    my @told = sort map { told($_->response) } @w;
    like("@told", qr/^200 NEW(?: 200 (?:WAITED|REPLAYED)){4}$/,
         '... it leaves: one of them executes');
    is(executions('crowd'), 1, '... once');
}


# It waits, and is not told: what it waits for is left to it all the same.

{
    my @o = ('/x?id=left&gate=1&status=403', key => 'left', body => 'b');
    my $owner = $n->start(POST => @o);
    held('left');

    my $w = $n->start(POST => @o, fault('unanswered'));
    ok(late('unanswered'), 'it waits for another, and is not told');
    go('left');
    is(told($owner->response, $w->response), '403 NEW, 403 WAITED',
       '... what that one leaves is for it');
    is(executions('left'), 1, '... executed once');
}


# --- the content's claim ----------------------------------------------------

{
    my @o = ('/similar?id=like', body => 'like');

    is(told($n->post(@o, key => 'like1', fault('unanswered'))), '200 NEW',
       'similar: neither claim is answered');
    ok(late('unanswered', 2), '... as the store says');
    is(told($n->post(@o, key => 'like2', fault('unanswered'))), '409 SIMILAR',
       '... nor are those of another key with its content');
    ok(late('unanswered', 2), '... as the store says');
    is(told($n->post(@o, key => 'like1')), '200 REPLAYED', '... recorded as any');
    is(executions('like'), 1, '... executed once');

    # it owns its key while its content's claim is not answered
    @o = ('/similar?id=gone', body => 'gone');
    my $c = $n->start(POST => @o, key => 'gone1', fault('unanswered'));
    ok(late('unanswered', 2), '... the second one is not answered');
    $c->reset;

    is(told($n->post(@o, key => 'gone1')), '200 NEW',
       '... its client leaves: its key is released');
    is(executions('gone'), 1, '... executed once');

    @o = ('/similar?id=free', body => 'free');
    $c = $n->start(POST => @o, key => 'free1', fault('unanswered'));
    ok(late('unanswered', 2), '... the same');
    $c->reset;
    is(told($n->post(@o, key => 'free2')), '200 NEW',
       '... and so is its content');
    is(executions('free'), 1, '... executed once');
}


# --- an outcome that is not answered ----------------------------------------

{
    my @o = ('/x?id=outcome', key => 'outcome', body => 'b');

    is(told($n->post(@o, fault('unsettled'))), '200 NEW',
       'no answer to an outcome: its client gets the response');
    is(told($n->post(@o)), '200 REPLAYED', '... and so do others');

    my $silent = qr/\[error\].*zone "z" does not answer, it is not known whether the outcome of an owner is recorded/;
    ok($n->wait_log($silent), '... it is logged');
    is(executions('outcome'), 1, '... executed once');

    # released
    @o = ('/x?id=release&status=403', key => 'release', body => 'b');
    is(told(map { $n->post(@o, fault('unsettled')) } 1, 2), '403 NEW, 403 NEW',
       'no answer to a release: the token is fresh');
}


# --- the worker's end -------------------------------------------------------

for my $what (qw(unanswered slow)) {
    my @o = ("/x?id=quit-$what", key => "quit-$what", body => 'b');
    my @old = $n->workers;
    my $c = $n->start(POST => @o, fault($what));

    ok(late($what), "$what: a claim");
    ok($n->reload, '... a reload');
    is(told($c->response), '200 NEW', '... its old worker goes on with it');
    $c->close;
    ok(until_true { !grep kill(0, $_), @old }, '... and ends');
    is(told($n->post(@o)), '200 REPLAYED', '... recorded as any');
    is(executions("quit-$what"), 1, '... executed once');
}

done_testing();
