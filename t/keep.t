# SPEC, "Which outcome is recorded" and idempotency_keep: which responses bind
# a token, and which of nginx's own release it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $n = nginx(files => { 'html/file' => "a file\n" },
              http => <<'EOC', server => <<'EOC');
    upstream down {
        server $TEST_NGINX_DEAD down;
    }

    upstream first_is_dead {
        server $TEST_NGINX_DEAD;
        server $TEST_NGINX_BACKEND backup;
    }
EOC
    idempotency zone=z;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /any {
        idempotency_keep any;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /2xx {
        idempotency_keep 2xx;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /codes {
        idempotency_keep 200 201 404;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /mixed {
        idempotency_keep 2xx 4xx 503;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /file {
        idempotency_keep 2xx;
        root $TEST_NGINX_ROOT/html;
    }

    # the peer is what the header says, so that a retry may meet another one
    location /peer {
        proxy_pass http://127.0.0.1:$http_x_port;

        location /peer/hasty {
            proxy_read_timeout 100ms;
            proxy_pass http://127.0.0.1:$http_x_port;
        }
    }

    location /peer-2xx {
        idempotency_keep 2xx;
        proxy_pass http://127.0.0.1:$http_x_port;

        location /peer-2xx/hasty {
            proxy_read_timeout 100ms;
            proxy_pass http://127.0.0.1:$http_x_port;
        }
    }

    location /down { proxy_pass http://down; }
    location /dead { proxy_pass http://first_is_dead; }
    location /nowhere { proxy_pass http://$http_x_name; }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

sub twice {
    my ($path, $query, %o) = @_;

    $id++;

    my @r = map { $n->post("$path?id=$id&$query", key => $id, %o) } 1, 2;

    return join(', ', map { told($_) } @r) . ', executed ' . executions($id);
}

# Bound: the same result again. Released: the retry executes and may differ.

sub bound {
    my ($path, $status, $query) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(twice($path, "status=$status"),
       "$status NEW, $status REPLAYED, executed 1", "$path: $status binds");
}

sub released {
    my ($path, $status) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(twice($path, "status=$status"),
       "$status NEW, $status NEW, executed 2", "$path: $status releases");
}


bound('/', $_) for qw(200 201 202 204 206 301 302 303 307 400 404 405 409 410
                      418 422 500 501 502 503 504 599);
released('/', $_) for qw(401 403 407 421 425 429);
bound('/any', $_) for qw(200 303 401 403 404 407 421 425 429 500);

bound('/2xx', $_) for qw(200 201 204 206 299);
released('/2xx', $_) for qw(300 302 303 400 404 409 429 500 503);

bound('/codes', $_) for qw(200 201 404);
released('/codes', $_) for qw(202 204 303 400 403 500);

bound('/mixed', $_) for qw(200 204 400 404 499 503);
released('/mixed', $_) for qw(303 500 502 504);


# A status that is not in the list goes out as it is, and leaves nothing.

{
    my $first = $n->post('/2xx?id=free&status=500&h=X-A:%20b', key => 'free',
                         body => 'one');
    is($first->{body}, "exec=1 id=free\n", 'a failure goes out as it is');
    is($first->header('X-A'), 'b', '... its headers too');
    ok(!$first->has('Idempotent-Replayed'), '... unmarked');

    is(told($n->post('/2xx?id=free&status=201', key => 'free',
                     body => 'another')),
       '201 NEW', 'a released token is free for anything');
    is(told($n->post('/2xx?id=free&status=500', key => 'free',
                     body => 'one')),
       '409 CONFLICT', '... that binds it now');
    is(told($n->post('/2xx?id=free&status=201', key => 'free',
                     body => 'another')),
       '201 REPLAYED', '... and is replayed');
}


# A response made here is an outcome like any other.

is(told($n->post('/file', key => 'file')), '405 NEW',
   'a local response that is not listed');
is(told($n->post('/file', key => 'file')), '405 NEW', '... releases');


# The upstream may say so itself; nobody else hears of it.

sub said {
    my ($path, $status, $value, %o) = @_;

    $id++;
    my @r = map {
        $n->post("$path?id=$id&status=$status&h=X-Accel-Idempotency:%20$value"
                 . '&h=X-After:%20yes', key => $id, body => $_ // 'b', %o)
    } undef, $o{then};

    is(scalar(grep { $_->{raw} =~ /x-accel/i } @r), 0,
       "... and no client sees it: $value");
    is(scalar(grep { ($_->header('X-After') // '') ne 'yes' } @r), 0,
       '... what stands behind it is there');

    return join(', ', map { told($_) } @r) . ', executed ' . executions($id);
}

is(said('/', 201, 'release'), '201 NEW, 201 NEW, executed 2',
   'the upstream says release');
is(said('/', 201, 'release', then => 'other'), '201 NEW, 201 NEW, executed 2',
   '... the token is free for anything');
is(said('/', 500, 'Release'), '500 NEW, 500 NEW, executed 2',
   'the upstream says Release');
is(said('/2xx', 200, 'release'), '200 NEW, 200 NEW, executed 2',
   'release goes before idempotency_keep');
is(said('/2xx', 500, 'keep'), '500 NEW, 500 REPLAYED, executed 1',
   'the upstream says keep: goes before idempotency_keep');
is(said('/', 200, 'keep'), '200 NEW, 200 REPLAYED, executed 1',
   'keep where it would be kept');
is(said('/2xx', 500, 'kept'), '500 NEW, 500 NEW, executed 2',
   'something else says nothing');
is(said('/', 200, 'released'), '200 NEW, 200 REPLAYED, executed 1',
   'something else says nothing');


# nginx could not pass the request to any upstream: released.

sub peer {
    my ($path, $port, $query) = @_;

    return $n->post("$path?id=$id&$query", key => $id, body => 'b',
                    headers => [ "X-Port: $port" ]);
}

my $closed = backend('dead');

$id++;
is(told(peer('/peer', $closed, 'status=201')), '502 NEW',
   'connection refused');
is(told(peer('/peer', $closed, 'status=201')), '502 NEW', '... and once more');
is(told(peer('/peer', backend(), 'status=201')), '201 NEW',
   '... releases: a retry executes');
is(told(peer('/peer', backend(), 'status=201')), '201 REPLAYED',
   '... and is bound then');
is(executions($id), 1, '... executed once');

is(told($n->post('/down?id=down', key => 'down')), '502 NEW',
   'no live upstream');
is(told($n->post('/down?id=down', key => 'down', body => 'other')), '502 NEW',
   '... releases');

for (1, 2) {
    is(told($n->post('/nowhere?id=nowhere', key => 'nowhere',
                     headers => [ 'X-Name: name.invalid' ])),
       '502 NEW', 'no resolver: releases');
}

is(told($n->post('/dead?id=dead&status=201', key => 'dead')), '201 NEW',
   'the first peer refused, the second executed');
is(told($n->post('/dead?id=dead&status=201', key => 'dead')), '201 REPLAYED',
   '... binds');


# A byte was sent and no whole response came: it may have executed. What the
# client got is the outcome.

for ([ 'close=1', 502, 'closed before the header' ],
     [ 'rst=1', 502, 'reset before the header' ],
     [ 'raw=garbage%0D%0A%0D%0A&close=1', 502, 'a malformed header' ],
     [ 'gate=1', 504, 'a timeout' ])
{
    my ($query, $status, $name) = @$_;

    for my $at (qw(/peer /peer-2xx)) {
        my $path = $status == 504 ? "$at/hasty" : $at;

        $id++;

        my $first = peer($path, backend(), $query);

        # the upstream may see it later than its client is told
        until_true { executions($id) };

        is(told($first), "$status NEW", "$path: $name");

        # had it been forgotten, this peer would refuse and give a 502 NEW
        my $again = peer($path, $closed, $query);

        is(told($again), "$status REPLAYED", '... may have executed: replayed');
        ok($again->{body} eq $first->{body} && $again->replayed,
           '... as the first client got it');
        is(executions($id), 1, '... executed once');
    }
}


# It broke off in the body: executed, but there is no response to give.

for ([ 'size=1000&cut=300', 'a length' ],
     [ 'size=1000&cut=300&rst=1', 'a length, reset' ],
     [ 'size=100000&cut=60000', 'a long one' ])
{
    my ($query, $name) = @$_;

    $id++;

    my $r = peer('/peer', backend(), $query);
    is($r->{status}, 200, "broken off in the body: $name");
    ok($r->{broken}, '... for the client as well');

    is(told(peer('/peer', backend(), $query)), '409 NOT_KEPT',
       '... executed, not kept');
    is(executions($id), 1, '... executed once');
}

done_testing();
