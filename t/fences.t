#!/usr/bin/perl

# docs/variables.md, $idempotency_fence: it rises with each claim of a token,
# whoever has it, whatever the clocks of the machines say; and whoever meets a claim
# is told its fence.

use lib 't/lib';
use Idempotency;
use JSON::PP;
use Redis;
use Restart;

my $handovers = $ENV{TEST_HANDOVERS} // 200;

my $server = <<'EOC';
    idempotency zone=z;
    idempotency_wait_timeout 10m;
    idempotency_lease 1h;
    proxy_read_timeout 10m;
    add_header X-Status $idempotency_status always;
    add_header X-Fence $idempotency_fence always;
    proxy_set_header X-Fence $idempotency_fence;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry {
        idempotency_lease 1s;
        idempotency_in_doubt retry;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /api/ { idempotency_api write=on; }
EOC

sub over {
    my ($zone, %o) = @_;

    return outliving(workers => 2, allow => qr/exited on signal 9/, server => $server, zone => $zone, %o);
}

sub at {
    my ($n, $id, %o) = @_;

    return $n->post(($o{at} // '') . "/x?id=$id" . ($o{more} // ''), key => $id, body => 'b');
}

# ... and what has been done is in the store

sub told_all {
    my ($n) = @_;
    return until_true { decode_json($n->get('/api/zones/z')->{body})->{store}{undelivered} == 0 };
}

sub fence { return $_[0]->header('X-Fence') }

# A token goes from one to the next: each executes it, and its answer releases it.
# How often did the fence not rise?

sub fell {
    my ($id, @all) = @_;

    my ($last, $falls, $executed) = (0, 0, 0);

    for my $n (0 .. $handovers - 1) {
        my $r = at($all[$n % @all], $id, more => '&status=429');

        $executed++ if $r->header('X-Status') eq 'NEW';
        $falls++ if fence($r) <= $last;
        $last = fence($r);
    }

    is($executed, $handovers, "$id: $handovers handovers");
    return $falls;
}


# --- memory ------------------------------------------------------------------------

{
    my $n = over('idempotency_zone zone=z:4m;');

    is(fell('memory', $n), 0, '... the fence rises');

    my $before = fence(at($n, 'm'));
    $n->restart('QUIT');
    cmp_ok(fence(at($n, 'm')), '>', $before, '... also when all is forgotten by a restart');
    $n->stop;
}


# --- a file ------------------------------------------------------------------------

SKIP: {
    skip(no_state(), 2) if no_state();

    my $zone = with_state('batched', size => '4m');
    my @two = map over($zone), 1, 2;

    is(fell('file', @two), 0, '... of two nginx with one file: the fence rises');
    $_->stop for @two;
}


# --- a Redis -----------------------------------------------------------------------

for my $program (Redis->programs) {
    my $redis = Redis->new(program => $program);
    my $zone = 'idempotency_zone zone=z:4m redis=r; idempotency_redis r { server unix:' . $redis->path
               . '; timeout 10s; }';

    my ($fast, $slow) = map over($zone, env => clock_wrong($_)), 3600, -3600;

    is(fell($program, $fast, $slow), 0, '... between clocks that are two hours apart the fence rises');

    # whoever meets a claim is told its fence

    my $repeat = sub { at($_[0], 'p', at => '/reject', more => '&gate=1') };
    my $asked = $fast->start('POST', '/reject/x?id=p&gate=1', key => 'p', body => 'b');
    held('p');

    
    my ($claimed) = last_request('p') =~ /^X-Fence: (\d+)/m;

    for my $r ([$repeat->($slow), 'pending elsewhere'], [$repeat->($fast), 'pending']) {
        is(told($r->[0]), '409 IN_PROGRESS', $r->[1]);
        is(fence($r->[0]), $claimed, '... under the fence of its claim');
    }

    go('p');
    is(fence($asked->response), $claimed, '... which its answer has');
    is(fence($repeat->($_)), $claimed, '... and each repeat') for $slow, $fast;

    # in doubt, and taken over

    my $first = fence(at($fast, 'd', at => '/retry', more => '&close=1'));
    told_all($fast);
    my $second = fence(at($slow, 'd', at => '/retry', more => '&close=1'));
    told_all($slow);
    my $third = fence(at($fast, 'd', at => '/retry'));

    cmp_ok($second, '>', $first, 'who takes over what is in doubt has a higher one');
    cmp_ok($third, '>', $second, '... and so has the next');

    # by hand

    my $records = '/api/zones/z/records';
    my $bound = fence(at($fast, 'f'));
    told_all($fast);

    is($slow->request('DELETE', "$records?key=f")->{status}, 204, 'what is done is forgotten by hand');
    cmp_ok(fence(at($slow, 'f')), '>', $bound, '... the next claim has a higher fence');

    # what is left of a claim that was released is seen by nobody

    at($fast, 'r', more => '&status=429');
    told_all($fast);
    is($slow->get("$records?key=r")->{status}, 404, 'what was released is no record');
    told_all($slow);
    is(scalar(() = $slow->get("$records?tier=backing")->{body} =~ /"token"/g), 3, '... nor in the list');

    # what was done by hand is so for who comes behind the answer

    my $behind = sub {
        my ($kind, $how, @by_hand) = @_;

        my @ids = map "$kind$_", 1 .. 20;
        at($fast, $_, %$how) for @ids;
        told_all($fast);

        return join ' ', map {
            my ($method, @body) = @by_hand;
            $slow->request($method, "$records?key=$_", @body)->{status} . ' ' . at($slow, $_, %$how)->header('X-Status')
        } @ids;
    };

    is($behind->('h', {}, 'DELETE'), join(' ', ('204 NEW') x 20), 'who comes behind a DELETE meets nothing of it');
    is($behind->('s', { more => '&close=1' }, 'PUT', body => 'released'), join(' ', ('204 NEW') x 20),
       '... and behind what was settled as released, no doubt');

    $_->stop for $fast, $slow;
}

done_testing();
