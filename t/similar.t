# SPEC, idempotency_similar: a new key with content that was just seen with
# another one is marked or refused.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use Time::HiRes qw(time);


my $n = nginx(workers => 2, http => <<'EOC', server => <<'EOC');
    idempotency zone=z;
    idempotency_content_window 300s;
    idempotency_log_level warn;

    set_real_ip_from 127.0.0.1;
    real_ip_header X-Forwarded-For;

    add_header X-Status $idempotency_status always;

    idempotency_zone zone=tiny:32k;
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /off {
        idempotency_similar off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /warn {
        idempotency_similar warn;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /warn/short {
            idempotency_content_window 1s;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /warn/to {
            proxy_pass http://$http_x_to;
        }

        location /warn/dry {
            idempotency_dry_run on;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /reject {
        idempotency_similar reject;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /reject/short {
            idempotency_content_window 1s;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/brief {
            idempotency_window 300ms;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/dry {
            idempotency_dry_run on;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/status {
            idempotency_status similar=429;
            idempotency_docs https://example.com/docs;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/page {
            error_page 409 = /similar.html;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/identity {
            idempotency_identity $http_x_user;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/scope {
            idempotency_scope $http_x_scope;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/field {
            idempotency_key $idempotency_field_tok;
            proxy_pass http://$TEST_NGINX_BACKEND;

            location /reject/field/ignored {
                idempotency_key $idempotency_field_tok;
                idempotency_ignore_fields tok;
                proxy_pass http://$TEST_NGINX_BACKEND;
            }
        }

        location /reject/content {
            idempotency_missing_key content;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/store {
            idempotency_keep 2xx;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/retry {
            idempotency_in_doubt retry;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /reject/down {
            proxy_pass http://$TEST_NGINX_DEAD;
        }

        location /reject/balanced {
            proxy_pass http://$TEST_NGINX_DEAD;
            error_page 502 = @up;
        }

        location /reject/to {
            proxy_pass http://$http_x_to;
        }

        location /reject/tiny {
            idempotency zone=tiny;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location @up { proxy_pass http://$TEST_NGINX_BACKEND; }

    location = /similar.html { return 200 "just sent\n"; }
EOC

my $form = 'application/x-www-form-urlencoded';
my $id = 'case0';

sub told {
    my ($r) = @_;

    return "$r->{status} " . ($r->header('X-Status') // '-');
}

# A request with a key of this case.

sub send_key {
    my ($path, $key, %o) = @_;

    my $query = delete $o{query} // '';

    return $n->request($o{method} // 'POST', "$path?id=$id$query",
                       key => "$id-$key", type => $form, body => 'a=1', %o);
}

sub sent {
    my ($path, @keys) = @_;

    $id++;

    return join ', ', map {
        told(ref $_ ? send_key($path, @$_) : send_key($path, $_))
    } @keys;
}


# --- off, warn, reject -------------------------------------------------------

is(sent($_, qw(k l k l)), '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED',
   "nothing at $_") for '/', '/off';

is(sent('/warn', qw(k l m)), '200 NEW, 200 SIMILAR, 200 SIMILAR',
   'warn: marked');
is(executions($id), 3, '... and executed');
is(join(', ', map { told(send_key('/warn', $_)) } qw(k l m l)),
   '200 REPLAYED, 200 REPLAYED, 200 REPLAYED, 200 REPLAYED',
   '... recorded, and replayed as any other');
is(executions($id), 3, '... and executed no more');
{
    my @log = grep /\Q?id=$id\E/, split /\n/, $n->log;
    is(scalar(grep /\[warn\].*content just seen, token: [0-9a-f]{64}/, @log), 2,
       '... with a line in the log for each');
    is(scalar(grep /\Q$id-l\E/, @log), 0, '... without the key');
}

is(sent('/reject', qw(k l m k)),
   '200 NEW, 409 SIMILAR, 409 SIMILAR, 200 REPLAYED', 'reject: refused');
is(executions($id), 1, '... and not executed');
is(told(send_key('/reject', 'l')), '409 SIMILAR', '... refused again');
is(told(send_key('/reject', 'l', body => 'a=2')), '200 NEW',
   '... its key is not bound: with other content it is executed');
is(told(send_key('/reject', 'l')), '409 CONFLICT',
   '... and then bound to that');
is(told(send_key('/reject', 'k', body => 'a=2')), '409 CONFLICT',
   'another content of a bound key is a conflict, similar or not');
is(executions($id), 2, '... executed once each');

# The refusal: for programs and for people.
{
    $id++;
    send_key('/reject', 'k');

    my $r = send_key('/reject', 'l');
    is($r->header('Content-Type'), 'application/problem+json',
       'a problem document');
    like($r->{body}, qr/"status":\s*409/, '... with its status');
    ok(!$r->has('Retry-After'), '... no advice to try again at once');

    $r = send_key('/reject', 'l', headers => ['Accept: text/html']);
    like($r->header('Content-Type'), qr{^text/html}, 'a page for browsers');

    $id++;
    send_key('/reject/page', 'k');
    $r = send_key('/reject/page', 'l');
    is("$r->{status} $r->{body}", "200 just sent\n", 'error_page works');
}

is(sent('/reject/status', qw(k l)), '200 NEW, 429 SIMILAR',
   'idempotency_status similar=429');
{
    my $r = send_key('/reject/status', 'l');
    like($r->{body}, qr{"https://example\.com/docs#similar"}, '... its docs');
    like($r->{body}, qr/"status":\s*429/, '... its status, told');
}


# --- what is similar ---------------------------------------------------------

is(sent('/reject', [ 'k', body => 'a=1&b=2' ], [ 'l', body => 'b=2&a=%31' ]),
   '200 NEW, 409 SIMILAR', 'by its meaning');
is(sent('/reject', [ 'k', body => '' ], [ 'l', body => '' ]),
   '200 NEW, 409 SIMILAR', 'without a body');
is(sent('/reject', [ 'k', method => 'PATCH' ], [ 'l', method => 'PATCH' ]),
   '200 NEW, 409 SIMILAR', 'any method that is listed');

is(sent('/reject', [ 'k', @{$_->[1]} ], [ 'l', @{$_->[2]} ]),
   '200 NEW, 200 NEW', "not similar: $_->[0]") for
    [ 'another body', [], [ body => 'a=2' ] ],
    [ 'another type', [], [ type => 'text/plain' ] ],
    [ 'another method', [], [ method => 'PATCH' ] ],
    [ 'other arguments', [], [ query => '&x=1' ] ],
    [ 'another cookie', [ headers => ['Cookie: s=1'] ],
      [ headers => ['Cookie: s=2'] ] ],
    [ 'a cookie and none', [ headers => ['Cookie: s=1'] ], [] ],
    [ 'another Authorization', [ headers => ['Authorization: a'] ],
      [ headers => ['Authorization: b'] ] ],
    [ 'another cookie, where many share a password',
      [ headers => ['Authorization: Basic YTpi', 'Cookie: s=1'] ],
      [ headers => ['Authorization: Basic YTpi', 'Cookie: s=2'] ] ],
    [ 'another API key', [ headers => ['X-Api-Key: a'] ],
      [ headers => ['X-Api-Key: b'] ] ],
    [ 'another browser behind one address', [ headers => ['User-Agent: a'] ],
      [ headers => ['User-Agent: b'] ] ],
    [ 'another language', [ headers => ['Accept-Language: a'] ],
      [ headers => ['Accept-Language: b'] ] ],
    [ 'another address', [ headers => ['X-Forwarded-For: 10.0.0.1'] ],
      [ headers => ['X-Forwarded-For: 10.0.0.2'] ] ];

is(sent('/reject', map { [ $_->[0], headers => [ 'Cookie: s=1', @{$_->[1]} ] ] }
                       [ 'k', [ 'X-Forwarded-For: 10.0.0.1' ] ],
                       [ 'l', [ 'X-Forwarded-For: 10.0.0.2', 'User-Agent: b',
                                'Accept-Language: de' ] ]),
   '200 NEW, 409 SIMILAR', 'who is known may change networks');
is(sent('/reject', [ 'k', headers => ['Cookie: s=1; _ga_1=1'] ],
        [ 'l', headers => ['Cookie: _ga_1=2; s=1'] ]),
   '200 NEW, 409 SIMILAR', '... and his cookies may tick');

is(sent('/reject/identity', [ 'k', headers => ['X-User: a', 'Cookie: s=1'] ],
        [ 'l', headers => ['X-User: b', 'Cookie: s=1'] ],
        [ 'm', headers => ['X-User: a', 'Cookie: s=2'] ]),
   '200 NEW, 200 NEW, 409 SIMILAR', 'idempotency_identity counts');
is(sent('/reject/scope', [ 'k', headers => ['X-Scope: a'] ],
        [ 'l', headers => ['X-Scope: b'] ], [ 'm', headers => ['X-Scope: a'] ]),
   '200 NEW, 200 NEW, 409 SIMILAR', 'idempotency_scope counts');
{
    $id++;
    is(join(', ', map { told($n->post("/reject$_->[0]?id=$id", type => $form,
                                      key => "$id$_->[1]", body => 'a=1')) }
                  [ '/a', 'k' ], [ '/b', 'l' ], [ '/a', 'm' ]),
       '200 NEW, 200 NEW, 409 SIMILAR', 'the path counts');
}

# A key in the body makes each body another one, unless it is ignored.
is(sent('/reject/field', map { [ $_, key => undef, body => "a=1&tok=$_" ] }
                             qw(k l)),
   '200 NEW, 200 NEW', 'a key in the body');
is(sent('/reject/field/ignored',
        map { [ $_, key => undef, body => "a=1&tok=$id$_" ] } qw(k l k)),
   '200 NEW, 409 SIMILAR, 200 REPLAYED', '... that is ignored');

# A request without a key is no new key.
is(sent('/reject', map { [ 'k', key => undef ] } 1, 2), '200 -, 200 -',
   'without a key');
is(sent('/reject/content', [ 'k', key => undef ], [ 'k', key => undef ], 'l',
        'm'),
   '200 NEW, 200 REPLAYED, 200 NEW, 409 SIMILAR',
   'a content token is no key either, but a second key is');


# --- one key is never similar to itself --------------------------------------

is(sent('/reject', qw(k k k)), '200 NEW, 200 REPLAYED, 200 REPLAYED',
   'a repeat is a repeat');

{
    $id++;
    my @m = (key => "$id-k", type => $form, body => 'a=1');
    my $uri = "/reject?id=$id&gate=1";
    my $first = $n->start(POST => $uri, @m);
    held($id);

    my $again = $n->start(POST => $uri, @m);
    is(told($n->post($uri, @m, key => "$id-l")), '409 SIMILAR',
       'while the first is being executed, another key is similar');

    go($id);
    is(told($first->response), '200 NEW', '... the first one ends');
    is(told($again->response), '200 WAITED', '... its repeat has waited');
    is(executions($id), 1, '... executed once');
}

# Its token may end before: that key is fresh, and its content its own.
{
    $id++;
    is(told(send_key('/reject/brief', 'k')), '200 NEW', 'a key for 300 ms');

    my $r;
    ok(until_true { ($r = told(send_key('/reject/brief', 'k')))
                    ne '200 REPLAYED' }, '... is free');
    is($r, '200 NEW', '... and not similar to itself');
    is(told(send_key('/reject/brief', 'l')), '409 SIMILAR',
       '... as another one is');
}


# --- the window --------------------------------------------------------------

for my $policy (qw(warn reject)) {
    my $similar = $policy eq 'warn' ? '200 SIMILAR' : '409 SIMILAR';
    my ($t, $r, $m, $i);

    is(within(1, sub { $t = time; sent("/$policy/short", qw(k l)) }),
       "200 NEW, $similar", "$policy: seen for a second");

    # the last of these must be seen within a second again
    for my $again ('', 1 .. 20) {
        my $from;

        until_true {
            $from = time;
            $r = told(send_key("/$policy/short",
                               $policy eq 'warn' ? 'new' . $i++ : "l$again"));
            $r ne $similar
        };

        cmp_ok(time - $t, '>=', 0.98, '... not for less');
        $t = $from;
        $m = told(send_key("/$policy/short", "m$again"));
        last if time - $from < 1;
    }

    is($r, '200 NEW', '... then it is new, also for a key that was refused');
    is($m, $similar, '... and others are similar to that');
    is(told(send_key("/$policy/short", 'k')), '200 REPLAYED',
       '... while the first key is bound as before');
}


# --- what was not executed was not seen --------------------------------------

for my $key (qw(k l)) {
    is(sent('/reject/down', 'k', $key), '502 NEW, 502 NEW',
       "no upstream, then $key");
    is(sent('/reject', [ 'k', query => '&h=X-Accel-Idempotency:%20release' ],
            [ $key, query => '&h=X-Accel-Idempotency:%20release' ]),
       '200 NEW, 200 NEW', "released by the upstream, then $key");
    is(sent('/reject/store', [ 'k', query => '&status=500' ],
            [ $key, query => '&status=500' ]),
       '500 NEW, 500 NEW', "an outcome that does not bind, then $key");
    is(sent('/reject/retry', [ 'k', query => '&close=1' ],
            [ $key, query => '&close=1' ]),
       '502 NEW, 502 NEW', "in doubt, to be retried, then $key");
}

is(sent('/reject', map { [ $_, query => '&close=1' ] } qw(k l)),
   '502 NEW, 409 SIMILAR', 'in doubt: it may have been executed');
is(sent('/reject', map { [ $_, query => '&status=500' ] } qw(k l)),
   '500 NEW, 409 SIMILAR', 'an error is an outcome');
is(sent('/reject/balanced', qw(k l)), '200 NEW, 409 SIMILAR',
   'executed by another upstream');

# Which of them was: the header says where they go to, and is no part of them.
{
    my ($up, $down) = map { "X-To: 127.0.0.1:$_" } backend(), $n->port(1);
    my $to = sub { map { [ $_->[0], headers => [ $_->[1] ] ] } @_ };

    is(sent('/warn/to', $to->([ k => $down ], [ l => $up ], [ 'm' => $up ],
                              [ k => $up ])),
       '502 NEW, 200 NEW, 200 SIMILAR, 200 SIMILAR',
       'the first was not executed, the second was');
    is(sent('/warn/to', $to->([ k => $up ], [ l => $down ], [ 'm' => $up ])),
       '200 NEW, 502 SIMILAR, 200 SIMILAR',
       'the first was executed, a similar one was not: it takes nothing back');
    is(sent('/reject/to', $to->([ k => $up ], [ l => $down ], [ 'm' => $up ])),
       '200 NEW, 409 SIMILAR, 409 SIMILAR', '... nor does one that is refused');
}

{
    $id++;
    my $q = '&gate=1&h=X-Accel-Idempotency:%20release';
    my $first = $n->start(POST => "/reject?id=$id$q", key => "$id-k",
                          type => $form, body => 'a=1');
    held($id);
    is(told(send_key('/reject', 'l', query => $q)), '409 SIMILAR',
       'similar to what is being executed');
    go($id);
    is(told($first->response), '200 NEW', '... which is released');

    my $second = $n->start(POST => "/reject?id=$id$q", key => "$id-l",
                           type => $form, body => 'a=1');
    held($id);
    go($id);
    is(told($second->response), '200 NEW', '... and then it is new');
}


# --- dry run -----------------------------------------------------------------

for my $policy (qw(warn reject)) {
    is(sent("/$policy/dry", qw(k l l k)),
       join(', ', map { "200 ${_}_DRY_RUN" } qw(NEW SIMILAR REPLAYED
                                                REPLAYED)),
       "a dry run of $policy: a similar one is executed and recorded");
    is(executions($id), 4, '... as all are executed');
}


# --- no room -----------------------------------------------------------------

# Where the key is claimed and there is no room for its content, the key is
# fresh again: nothing was executed.
{
    $id++;
    my ($last, $i, $new) = ('', 0, 0);

    while ($i < 500 && $last !~ /^503/) {
        $last = told($n->post("/reject/tiny?id=$id", key => "tiny-$i",
                              type => $form, body => 'i=' . $i++));
        $new++ if $last eq '200 NEW';
    }

    is($last, '503 UNAVAILABLE', 'a full zone');
    is(executions($id), $new, '... what was refused was not executed');
    is(told($n->post("/reject/tiny?id=$id", key => 'tiny-0', type => $form,
                     body => 'i=0')), '200 REPLAYED', '... what was stays');
}

done_testing();
