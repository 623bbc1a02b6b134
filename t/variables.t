# SPEC, "Variables" and idempotency_log_level: what the logs can say.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $n = nginx(http => <<'EOC', server => <<'EOC');
    log_format vars escape=json '{"status":"$idempotency_status",'
                                '"key":"$idempotency_key",'
                                '"token":"$idempotency_token",'
                                '"digest":"$idempotency_digest",'
                                '"age":"$idempotency_age",'
                                '"replays":"$idempotency_replays",'
                                '"code":"$status","uri":"$request_uri"}';
    access_log $TEST_NGINX_ROOT/logs/access.log vars;

    map $idempotency_status $early {
        volatile;
        default "early-$idempotency_status";
        "" none;
    }
EOC
    idempotency zone=z;
    idempotency_in_progress reject;

    add_header X-Status $idempotency_status always;
    add_header X-Key $idempotency_key always;
    add_header X-Token $idempotency_token always;
    add_header X-Digest $idempotency_digest always;
    add_header X-Age $idempotency_age always;
    add_header X-Replays $idempotency_replays always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /small {
        idempotency_max_response 4;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /reject {
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /bypass {
        idempotency_bypass 1;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /off {
        idempotency off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /return { return 200 "status=[$idempotency_status]\n"; }

    # variables that were asked for before there was anything to say
    location /early {
        set $seen "$idempotency_status$idempotency_token$idempotency_age";
        if ($early = never) {
            return 500;
        }

        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # what the upstream is told
    location /told {
        proxy_set_header X-Got-Status $idempotency_status;
        proxy_set_header X-Got-Key $idempotency_key;
        proxy_set_header X-Got-Token $idempotency_token;
        proxy_set_header X-Got-Digest $idempotency_digest;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /dry {
        idempotency_dry_run on;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /dry/small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /dry/pass {
            idempotency_missing_key pass;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }
EOC

# The values of a request, as the response's headers give them.

sub values_of {
    my ($method, $uri, %o) = @_;

    my $r = $n->request($method, $uri, %o);

    return { r => $r, map {
        (lc, $r->header("X-$_") // '')
    } qw(Status Key Token Digest Age Replays) };
}

sub logged {
    my ($uri, $count) = @_;

    my @lines;

    until_true {
        @lines = grep { index($_, "\"uri\":\"$uri\"") >= 0 }
                 split /\n/, $n->access_log;
        @lines >= ($count // 1);
    };

    return map { { /"(\w+)":"((?:[^"\\]|\\.)*)"/g } } @lines;
}


# --- the status, in headers and in the log -----------------------------------

sub status_is {
    my ($expected, $method, $uri, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $before = () = $n->access_log =~ /"uri":"\Q$uri\E"/g;
    my $v = values_of($method, $uri, %o);
    my @l = logged($uri, $before + 1);

    is("$v->{status}, $l[-1]{status}", "$expected, $expected",
       ($expected || 'empty') . ": $method $uri");

    # what the log says is what the headers say
    is(join('|', map { $l[-1]{$_} } qw(key token digest)),
       join('|', map { $v->{$_} } qw(key token digest)), '... the log agrees');

    return $v;
}

sub pending {
    my ($uri, $id) = @_;

    my $c = $n->start('POST', $uri, key => $id, body => 'b');
    held($id);

    return $c;
}

status_is('NEW', POST => '/v?id=v1', key => 'v1', body => 'b');
status_is('REPLAYED', POST => '/v?id=v1', key => 'v1', body => 'b');
status_is('CONFLICT', POST => '/v?id=v1', key => 'v1', body => 'c');

my $c = pending('/v?id=v2&gate=1', 'v2');
status_is('IN_PROGRESS', POST => '/v?id=v2&gate=1', key => 'v2', body => 'b');
go('v2');
is($c->response->header('X-Status'), 'NEW', 'NEW: its owner');

status_is('NEW', POST => '/small?id=v3', key => 'v3');
status_is('NOT_KEPT', POST => '/small?id=v3', key => 'v3');
status_is('MISSING', POST => '/reject?id=v4');
status_is('MALFORMED', POST => '/v?id=v5', key => '"');
status_is('BYPASS', POST => '/bypass?id=v6', key => 'v6');

status_is('', POST => '/v?id=v7');
status_is('', GET => '/v?id=v8', key => 'v8');
status_is('', PUT => '/v?id=v8', key => 'v8');
status_is('', POST => '/off?id=v9', key => 'v9');

like($n->post('/return', key => 'v10')->{body}, qr/status=\[\]/,
     'empty: return, which answers before all of it');

status_is('NEW_DRY_RUN', POST => '/dry?id=d1', key => 'd1', body => 'b');
status_is('REPLAYED_DRY_RUN', POST => '/dry?id=d1', key => 'd1', body => 'b');
status_is('CONFLICT_DRY_RUN', POST => '/dry?id=d1', key => 'd1', body => 'c');

$c = pending('/dry?id=d2&gate=1', 'd2');
my $c2 = $n->start('POST', '/dry?id=d2&gate=1', key => 'd2', body => 'b');
held('d2', 2);
go('d2');
is(join(', ', map { $_->response->header('X-Status') } $c, $c2),
   'NEW_DRY_RUN, IN_PROGRESS_DRY_RUN', 'IN_PROGRESS_DRY_RUN');

status_is('NEW_DRY_RUN', POST => '/dry/small?id=d3', key => 'd3');
status_is('NOT_KEPT_DRY_RUN', POST => '/dry/small?id=d3', key => 'd3');
status_is('MISSING_DRY_RUN', POST => '/dry?id=d4');
status_is('MALFORMED_DRY_RUN', POST => '/dry?id=d5', key => '"');
status_is('', POST => '/dry/pass?id=d6');
status_is('', GET => '/dry?id=d7', key => 'd7');


# --- the key -----------------------------------------------------------------

is(values_of(POST => '/v?id=k1', key => 'a b')->{key}, 'a b', 'a bare key');
is(values_of(POST => '/v?id=k2', key => '"a \\"b\\\\"; v=1')->{key}, 'a "b\\',
   "a string's content");
is(values_of(POST => '/v?id=k3')->{key}, '', 'no key');
is(values_of(POST => '/v?id=k4', key => '"k4')->{key}, '', 'a malformed key');
is(values_of(POST => '/off?id=k5', key => 'k5')->{key}, '', 'not protected');


# --- token and digest --------------------------------------------------------

{
    my @o = (POST => '/v?id=t1', key => 't1', body => 'b');
    my $first = values_of(@o);

    like($first->{token}, qr/^[0-9a-f]{64}$/, 'a token is 64 hex digits');
    like($first->{digest}, qr/^[0-9a-f]{64}$/, 'a digest is 64 hex digits');
    isnt($first->{token}, $first->{digest}, '... of something else');
    unlike($first->{token}, qr/^(.)\1*$/, '... and of something');

    my $again = values_of(@o);
    is($again->{token}, $first->{token}, 'the same for the same: token');
    is($again->{digest}, $first->{digest}, 'the same for the same: digest');

    my $string = values_of(@o, key => '"t1"');
    is($string->{token}, $first->{token}, 'a key as a string: token');

    my $body = values_of(@o, body => 'c');
    is($body->{status}, 'CONFLICT', 'another body');
    is($body->{token}, $first->{token}, '... the token is the same');
    isnt($body->{digest}, $first->{digest}, '... the digest is not');

    my $who = values_of(@o, headers => [ 'Authorization: x' ]);
    is($who->{token}, $first->{token}, 'another client: the token is the same');

    my $key = values_of(@o, key => 't2');
    isnt($key->{token}, $first->{token}, 'another key: another token');
    is($key->{digest}, $first->{digest}, '... the digest is the same');

    my $none = values_of(POST => '/v?id=t3', body => 'b');
    is("$none->{token}$none->{digest}", '', 'no key: neither');
}


# --- age and replays ---------------------------------------------------------

{
    my @o = (POST => '/v?id=a1', key => 'a1', body => 'b');

    my $start = time;

    is(values_of(@o)->{age}, '', 'no age of what is new');

    my @replays = map { values_of(@o)->{replays} } 1 .. 3;
    is("@replays", '1 2 3', 'replays are counted');

    like(values_of(@o)->{age}, qr/^\d$/, 'the age, at once');
    ok(until_true { values_of(@o)->{age} >= 2 }, '... grows');
    cmp_ok(time - $start, '>=', 0.98, '... by seconds');
    cmp_ok(values_of(@o)->{age}, '<=', time - $start + 1, '... and not faster');

    my $before = values_of(@o)->{replays};
    values_of(@o, body => 'other');
    is(values_of(@o)->{replays}, $before + 1, 'a refusal is no replay');
}


# --- when they are asked for -------------------------------------------------

{
    my @s = map { values_of(POST => '/early?id=e1', key => 'e1')->{status} }
            1, 2;
    is("@s", 'NEW REPLAYED', 'asked for too early, they are not stuck');

    my $v = values_of(POST => '/told?id=told', key => '"told"', body => 'b');
    my $req = last_request('told');
    my ($status, $key, $token, $digest)
        = map { $req =~ /^X-Got-$_: (.*?)\r?$/m } qw(Status Key Token Digest);

    is($status, 'NEW', 'the upstream may be told: status');
    is($key, 'told', '... key');
    is($token, $v->{token}, '... token');
    is($digest, $v->{digest}, '... digest');
}


# --- the error log -----------------------------------------------------------

for my $level (undef, qw(info notice warn error)) {
    my $expected = $level // 'notice';
    my $line = $level ? "idempotency_log_level $level;" : '';

    my $m = nginx(log_level => 'info', server => <<"EOC" . <<'EOC');
        $line
EOC
        idempotency zone=z;
        idempotency_in_progress reject;
        idempotency_missing_key reject;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /dry {
            idempotency_dry_run on;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
EOC

    my $name = "log level " . ($level // 'by default');
    my $key = "the-secret-key-$expected";

    my $logs = sub {
        my ($what, $count, @request) = @_;

        my $from = length $m->log;
        my $r = $m->request(@request);
        my $log = substr $m->log, $from;
        my @lines = grep /idempoten/i && !/: \*\d+ client|\[debug\]/,
                    split /\n/, $log;

        is(scalar @lines, $count, "$name: $what: $count line")
            or diag $log;
        is(scalar(grep { !/\[$expected\]/ } @lines), 0,
           '... at that level') or diag $log;
        unlike($log, qr/\Q$key\E/, '... the key is not in clear');
    };

    my $id = "log-$expected" . ($level ? '' : '-default');
    my @o = (key => $key, body => 'b');

    $logs->('a new one', 0, POST => "/x?id=$id", @o);
    $logs->('a replay', 1, POST => "/x?id=$id", @o);
    $logs->('a conflict', 1, POST => "/x?id=$id", @o, body => 'c');
    $logs->('no key', 1, POST => "/x?id=$id", body => 'b');
    $logs->('a malformed key', 1, POST => "/x?id=$id", key => "\"$key",
            body => 'b');
    $logs->('one to be not kept', 0, POST => "/small?id=$id-s",
            @o, key => "$key-s");
    $logs->('not kept', 1, POST => "/small?id=$id-s", @o, key => "$key-s");
    $logs->('a method that is not listed', 0, GET => "/x?id=$id");

    my $p = $m->start('POST', "/x?id=$id-p&gate=1", @o, key => "$key-p");
    held("$id-p");
    $logs->('in progress', 1, POST => "/x?id=$id-p&gate=1", @o,
            key => "$key-p");
    go("$id-p");
    is($p->response->{status}, 200, 'its owner ends');

    $logs->('dry run: a new one', 0, POST => "/dry?id=$id-d", @o,
            key => "$key-d");
    $logs->('dry run: a conflict', 1, POST => "/dry?id=$id-d", @o,
            key => "$key-d", body => 'c');
    $m->stop;
}

# --- when it ends, and which claim it was ----------------------------------

{
    my $log = 'log_format ends "$request_uri=$idempotency_status'
              . '=$idempotency_expires=$idempotency_fence";'
              . 'access_log $TEST_NGINX_ROOT/logs/access.log ends;';

    my $n = nginx(http => $log, server => <<'EOC');
        idempotency zone=z;
        idempotency_window 1h;
        idempotency_in_progress reject;
        proxy_set_header X-Fence $idempotency_fence;
        add_header X-Fence $idempotency_fence always;
        add_header X-Expires $idempotency_expires always;
        add_header X-Status $idempotency_status always;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /two { idempotency_window 90s; idempotency_key_format any;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
        location /large { idempotency_max_response 10;
                          proxy_pass http://$TEST_NGINX_BACKEND; }
        location /off { idempotency off;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    my $post = sub {
        my ($uri, $key, $body) = @_;
        return $n->post($uri, key => $key, body => $body // 'b');
    };

    my $first = $post->('/x?id=e1', 'e1');
    my $fence = $first->header('X-Fence');
    like($fence, qr/^[1-9]\d*$/, 'an owner has a fence');
    like(last_request('e1'), qr/^X-Fence: $fence$/m, '... its upstream knows');
    is($first->header('X-Expires'), 3600, '... and its window');

    my $again = $post->('/x?id=e1', 'e1');
    is($again->header('X-Fence'), $fence, 'a repeat meets that');
    my $left = $again->header('X-Expires');
    ok($left > 3500 && $left <= 3600, "... and knows what is left: $left");
    $left = $post->('/x?id=e1', 'e1', 'other')->header('X-Expires');
    ok($left > 3500 && $left <= 3600, '... a conflict as well');

    my $next = $post->('/two?id=e2&status=429', 'e2');
    cmp_ok($next->header('X-Fence'), '>', $fence, 'it rises');
    is($next->header('X-Expires'), 90, '... another window');
    my $then = $post->('/two?id=e2&status=200', 'e2');
    cmp_ok($then->header('X-Fence'), '>', $next->header('X-Fence'),
           '... for the same token, too');

    $post->('/large?id=e3&size=100', 'e3');
    my $kept = $post->('/large?id=e3&size=100', 'e3');
    is($kept->header('X-Status'), 'NOT_KEPT', 'what is not kept');
    ok($kept->header('X-Expires') > 3500, '... ends as well');

    my $c = $n->start('POST', '/x?id=e4&gate=1', key => 'e4', body => 'b');
    held('e4');
    my $busy = $post->('/x?id=e4&gate=1', 'e4');
    is($busy->header('X-Status'), 'IN_PROGRESS', 'what is pending');
    ok(!$busy->has('X-Expires'), '... has no end yet');
    go('e4');
    $c->response;
    $c->close;

    for my $r ($n->post('/x?id=e5', body => 'b'), $post->('/off?id=e5', 'e5')) {
        ok(!$r->has('X-Expires') && !$r->has('X-Fence'),
           'nothing of what is not protected');
    }

    unlike(last_request('e5'), qr/X-Fence/, '... nor does its upstream know');

    my $logged = sub {
        my ($re) = @_;
        until_true { $n->access_log =~ $re };
        return $n->access_log =~ $re;
    };

    ok($logged->(qr{^/x\?id=e1=NEW=3600=$fence$}m), 'in the log: an owner');
    ok($logged->(qr{^/two\?id=e2&status=429=NEW=0=\d+$}m),
       '... what was released is free');
    $n->stop;
}

done_testing();
