#!/usr/bin/perl

# docs/directives.md, idempotency_keep: those who wait get the releasing
# response too, and none of them executes. After any other release exactly one
# of them does.

use lib 't/lib';
use Idempotency;
use Stress;

my $n = nginx(workers => 2, http => <<'EOC' . crowd(<<'EOC2'));
    log_format result '$request_uri $idempotency_status $idempotency_expires';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
    idempotency_wait_timeout 10m;
    proxy_read_timeout 10m;
    upstream one { zone one 64k; server $TEST_NGINX_BACKEND max_conns=1; }
EOC
    idempotency zone=z;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /2xx { idempotency_keep 2xx; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 100; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /page { proxy_intercept_errors on;
                     error_page 429 =200 /sorry;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /sorry { internal; return 200 sorry; }
    location /one { proxy_pass http://one; }
EOC2

my @workers = $n->workers;


# An owner that the backend holds, and so many duplicates in both workers.

sub crowd_of {
    my ($many, $id, $uri) = @_;

    my $p = parking($n);
    my @c = map {
        my $c = ask(connection_to($n, $workers[$_ % 2]), 'POST', $uri,
                    key => $id, body => 'b');
        held($id) if $_ == 0;
        $c;
    } 0 .. $many;

    ok(parked($p, 1 + $many), "$id: an owner, $many wait");

    return @c;
}


for (['429', '/x', 'status=429&h=Retry-After:%2060&h=X-A:%201&h=X-A:%202', 429],
     ['401', '/x', 'status=401&h=WWW-Authenticate:%20Bearer', 401],
     ['503', '/x', 'status=503&h=Retry-After:%2060', 503],
     ['2xx', '/2xx', 'status=404', 404],
     ['long', '/x', 'status=403&size=300000', 403],
     ['chunked', '/x', 'status=403&size=300000&te=chunked&trailer=X-T:%20t', 403],
     ['empty', '/x', 'status=403&body=', 403],
     ['page', '/page', 'status=429', 200])
{
    my ($id, $at, $query, $status) = @$_;
    my $uri = "$at?id=$id&gate=1&$query";
    my @c = crowd_of(10, $id, $uri);

    go($id);

    my ($first, @r) = gather(@c);
    is(told($first, @r), join(', ', "$status NEW", ("$status WAITED") x 10),
       '... all who waited get what the owner gets');
    same_replay($first, $_, '... to the byte') for @r;
    is(executions($id), 1, '... executed once');

    my $next = $n->start('POST', $uri, key => $id, body => 'b');
    held($id);
    go($id);
    is(told($next->response), "$status NEW", '... the token is fresh');
    is(executions($id), 2, '... and executes anew');
    $_->close for @c, $next;
}


# What can't be left to them: one after the other executes.

for (['says', '/x', 'h=X-Accel-Idempotency:%20release', 200],
     ['large', '/small', 'status=429&size=200', 429],
     ['broken', '/x', 'status=429&size=5000&cut=100', 429])
{
    my ($id, $at, $query, $status) = @$_;
    my @c = crowd_of(3, $id, "$at?id=$id&gate=1&$query");

    for my $i (1 .. 4) {
        held($id);
        is(executions($id), $i, "$id: execution $i, and one only");
        go($id);
    }

    is(told(gather(@c)), join(', ', ("$status NEW") x 4), '... each is an owner');
    is(executions($id), 4, '... no more');
    $_->close for @c;
}


# An upstream that has all that it takes was sent nothing, and is free later.

my $busy = $n->start('POST', '/one?id=busy&gate=1', key => 'busy', body => 'b');
my @o = ('/one?id=limit', key => 'limit');

held('busy');
is(told($n->post(@o)) . ', executed ' . executions('limit'), '502 NEW, executed 0', 'max_conns reached');
go('busy');
is(told($busy->response, $n->post(@o)), '200 NEW, 200 NEW', '... and no more: released');
$busy->close;


# None of those who waited has bound anything, nor has the owner.

my @logged;

until_true {
    @logged = sort $n->access_log =~ /^\S*id=429&\S* (\w+ \S*)$/mg;
    @logged == 12;
};

is_deeply(\@logged, [ ('NEW 0') x 2, ('WAITED 0') x 10 ], 'in the log: their token is free');

$n->stop;
done_testing();
