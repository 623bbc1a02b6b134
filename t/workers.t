#!/usr/bin/perl

# More workers than there are slots, and no descriptors to wake them by: who
# waits there is not called, but looks again, and nothing else is different.

use lib 't/lib';
use Idempotency;
use Stress;


# An owner in one worker, one who waits in another, one who comes later.

sub told_in_time {
    my ($n, $id, $owner, $waiter) = @_;

    my @message = ('POST', "/x?id=$id&gate=1", key => $id, body => 'b');

    my $first = ask(connection_to($n, $owner), @message);
    held($id);

    my ($c) = $n->racing(sub { ask(connection_to($n, $waiter), @message) });

    ok(!$c->readable, "$id: it waits");

    go($id);

    is(told($first->response), '200 NEW', '... the owner has its answer');

    my $r = $c->response;
    is(told($r), '200 WAITED', '... who waited has it too');
    is($r->header('X-Pid'), $waiter, '... from its own worker');
    is(executions($id), 1, '... executed once');
    is(told($n->request(@message)), '200 REPLAYED', '... and is replayed');
}


{
    my $n = nginx(workers => 132, http => crowd('    idempotency zone=z;
    idempotency_wait_timeout 10m;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
'));

    my %extra;

    ok(until_true {
           %extra = map { $_ => 1 }
                    $n->log =~ /\[warn\] (\d+)#.*more than 128 workers/g;
           keys %extra == 4
       }, '132 workers, of which 4 say that there are more than 128')
        or diag(scalar keys %extra);

    my ($beyond) = keys %extra;
    my ($within) = grep { !$extra{$_} } $n->workers;

    told_in_time($n, 'beyond', $within, $beyond);
    told_in_time($n, 'owned', $beyond, $within);

    # what such a worker owned is in doubt as soon as it is gone
    my @message = ('POST', '/x?id=dies&gate=1', key => 'dies', body => 'b');
    my $c = ask(connection_to($n, $beyond), @message);
    held('dies');
    kill KILL => $beyond;

    my $r;
    ok(until_true { ($r = $n->request(@message))->{status} },
       'a worker beyond them dies with a claim');
    is(told($r), '409 IN_DOUBT', '... which is in doubt');
    is(executions('dies'), 1, '... executed once');
    go('dies');

    $n->{allow} = qr/exited on signal 9/;
}


{
    my $n = nginx(workers => 2, descriptors => 100,
                  http => crowd('    idempotency zone=z;
    idempotency_wait_timeout 10m;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
'));

    like($n->log, qr/\[warn\].*eventfd\(\) failed.*Too many open files/,
         'too few descriptors for an eventfd each');

    my ($one, $other) = $n->workers;

    told_in_time($n, 'few', $one, $other);
}


done_testing();
