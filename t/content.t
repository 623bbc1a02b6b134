# SPEC, "Words" (token) and idempotency_missing_key content: two clicks are one
# submit though nobody sends a key.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use Time::HiRes qw(sleep time);


my $n = nginx(workers => 2, http => <<'EOC', server => <<'EOC');
    idempotency zone=z;
    idempotency_missing_key content;

    set_real_ip_from 127.0.0.1;
    real_ip_header X-Forwarded-For;

    add_header X-Status $idempotency_status always;
    add_header X-Token $idempotency_token always;
    add_header X-Key "[$idempotency_key]" always;

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name other;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /short {
        idempotency_content_window 300ms;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /long {
        idempotency_window 300ms;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /scope {
        idempotency_scope $http_x_scope;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /identity {
        idempotency_identity $http_x_user;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /reject {
        idempotency_in_progress reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /raw {
        idempotency_normalize off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /ignore {
        idempotency_ignore_fields csrf;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /dry {
        idempotency_dry_run on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /store {
        idempotency_keep 2xx 3xx;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /down {
        proxy_pass http://$TEST_NGINX_DEAD;
    }
EOC

my $form = 'application/x-www-form-urlencoded';
my $id = 'case0';

sub told {
    my ($r) = @_;

    return "$r->{status} " . ($r->header('X-Status') // '-');
}

sub click {
    my ($path, %o) = @_;

    my $method = delete $o{method} // 'POST';
    my $query = delete $o{query} // '';

    return $n->request($method, "$path?id=$id$query", type => $form,
                       body => 'comment=me+too', %o);
}

sub clicks {
    my ($path, @clicks) = @_;

    $id++;

    return join ', ', map { told(click($path, @$_)) } @clicks;
}

# The response as it is but for our own header, which tells them apart.

sub plain {
    my ($r) = @_;

    return bless { %$r, lines => [ grep !/^X-Status:/, @{$r->{lines}} ] },
                 ref $r;
}

# Two that are one and the same, and two that have nothing to do with each
# other: the second is neither replayed nor refused.

sub one {
    my ($name, $path, $a, $b) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(clicks($path, $a, $b), '200 NEW, 200 REPLAYED', "one: $name");
    is(executions($id), 1, '... executed once');
}

sub two {
    my ($name, $path, $a, $b) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(clicks($path, $a, $b, $a, $b),
       '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED', "two: $name");
    is(executions($id), 2, '... each executed once');
}


# --- two clicks --------------------------------------------------------------

one('a double click', '/', [], []);
one('without a body', '/', [ body => '' ], [ body => '' ]);
one('chunked or not', '/', [], [ chunked => 1 ]);
one('PATCH', '/', [ method => 'PATCH' ], [ method => 'PATCH' ]);
one('an empty header is no key', '/', [], [ key => '' ]);
one('the same cookie', '/', [ headers => ['Cookie: s=1'] ],
    [ headers => ['Cookie: s=1'] ]);
one('the same Authorization', '/', [ headers => ['Authorization: a'] ],
    [ headers => ['Authorization: a'] ]);
one('the same of both', '/',
    [ headers => ['Authorization: a', 'Cookie: s=1'] ],
    [ headers => ['Cookie: s=1', 'Authorization: a'] ]);
one('the same address', '/', [ headers => ['X-Forwarded-For: 10.0.0.1'] ],
    [ headers => ['X-Forwarded-For: 10.0.0.1'] ]);
one('another spelling', '/', [ body => 'a=1&b=2' ], [ body => 'b=2&a=%31' ]);
one('what is ignored', '/ignore', [ body => 'a=1&csrf=x' ],
    [ body => 'csrf=y&a=1' ]);
one('the same browser', '/',
    [ headers => ['User-Agent: a', 'Accept-Language: de'] ],
    [ headers => ['Accept-Language: de', 'User-Agent: a', 'Accept: */*'] ]);

# Who is known may change networks, and what he shows of himself.
for my $who ([ 'a session', 'Cookie: s=1' ],
             [ 'a bearer token', 'Authorization: Bearer a' ],
             [ 'a password', 'Authorization: Basic YTpi' ],
             [ 'an API key', 'X-Api-Key: a' ])
{
    my ($name, $line) = @$who;

    one("$name, from another address", '/',
        [ headers => [ $line, 'X-Forwarded-For: 10.0.0.1' ] ],
        [ headers => [ $line, 'X-Forwarded-For: 10.0.0.2' ] ]);
    one("$name, with another User-Agent and Accept-Language", '/',
        [ headers => [ $line, 'User-Agent: a' ] ],
        [ headers => [ $line, 'User-Agent: b', 'Accept-Language: de' ] ]);
}

one('a user of an application, from another address', '/identity',
    [ headers => ['X-User: a', 'X-Forwarded-For: 10.0.0.1'] ],
    [ headers => ['X-User: a', 'X-Forwarded-For: 10.0.0.2'] ]);
one('the same user of an application', '/identity',
    [ headers => ['X-User: a', 'Cookie: s=1'] ],
    [ headers => ['X-User: a', 'Cookie: s=2'] ]);

# The same page or redirect, whole.
{
    $id = 'whole';
    my $q = '&status=303&h=Location:%20/thanks%3Fn=1&h=X-A:%201&h=X-A:%202';
    my @r = map { click('/', query => $q) } 1, 2;

    same_replay((map { plain($_) } @r), 'the second click gets the same redirect');
    is($r[1]->header('Location'), '/thanks?n=1', '... to the same place');
    is($r[0]->header('X-Key'), '[]', 'there is no key');
    like($r[0]->header('X-Token') // '', qr/^[0-9a-f]{64}$/,
         '... but there is a token');
    is($r[1]->header('X-Token'), $r[0]->header('X-Token'), '... of both');
}

# Over both workers and on one connection.
{
    $id = 'many';
    is(join(', ', map { told(click('/')) } 1 .. 20),
       join(', ', '200 NEW', ('200 REPLAYED') x 19), '20 clicks');
    is(executions($id), 1, '... executed once');
}

# The second one comes while the first is being executed.
{
    $id = 'pending';
    my $q = '&gate=1&status=303&h=Location:%20/thanks';
    my @m = (type => $form, body => 'comment=me+too');
    my $uri = "/?id=$id$q";

    my $first = $n->start(POST => $uri, @m);
    held($id);

    my @more = map { $n->start(POST => $uri, @m) } 1 .. 5;
    my $other = $n->start(POST => $uri, type => $form, body => 'comment=other');
    held($id, 2);

    is(executions($id), 2, 'only another one is executed meanwhile');
    go($id);

    my $r = $first->response;
    is(told($r), '303 NEW', 'the first click');

    for (@more) {
        my $s = $_->response;
        is(told($s), '303 WAITED', '... another has waited');
        same_replay(plain($r), plain($s), '... for the same redirect');
    }

    is(told($other->response), '303 NEW', '... the other one did not');
    is(executions($id), 2, '... and two it remains');
}

{
    $id = 'busy';
    my @m = (type => $form, body => 'comment=me+too');
    my $first = $n->start(POST => "/reject?id=$id&gate=1", @m);
    held($id);
    is(told(click('/reject', query => '&gate=1')), '409 IN_PROGRESS',
       'in_progress is heeded');
    go($id);
    is(told($first->response), '200 NEW', '... and the first one ends');
}


# --- someone else's equal comment is someone else's --------------------------

two('another cookie', '/', [ headers => ['Cookie: s=1'] ],
    [ headers => ['Cookie: s=2'] ]);
two('a cookie and none', '/', [ headers => ['Cookie: s=1'] ], []);
two('another Authorization', '/', [ headers => ['Authorization: a'] ],
    [ headers => ['Authorization: b'] ]);
two('Authorization and none', '/', [], [ headers => ['Authorization: b'] ]);
two('another cookie, where many share a password', '/',
    [ headers => ['Authorization: Basic YTpi', 'Cookie: s=1'] ],
    [ headers => ['Authorization: Basic YTpi', 'Cookie: s=2'] ]);
two('another cookie, where many share an API key', '/',
    [ headers => ['X-Api-Key: a', 'Cookie: s=1'] ],
    [ headers => ['X-Api-Key: a', 'Cookie: s=2'] ]);
two('another API key', '/', [ headers => ['X-Api-Key: a'] ],
    [ headers => ['X-Api-Key: b'] ]);
two('another browser behind one address', '/', [ headers => ['User-Agent: a'] ],
    [ headers => ['User-Agent: b'] ]);
two('a browser and none', '/', [ headers => ['User-Agent: a'] ], []);
two('another language behind one address', '/',
    [ headers => ['User-Agent: a', 'Accept-Language: de'] ],
    [ headers => ['User-Agent: a', 'Accept-Language: fr'] ]);
two('a language that is the other one\'s browser', '/',
    [ headers => ['User-Agent: a'] ], [ headers => ['Accept-Language: a'] ]);
two('another address', '/', [ headers => ['X-Forwarded-For: 10.0.0.1'] ],
    [ headers => ['X-Forwarded-For: 10.0.0.2'] ]);
two('an address of the other kind', '/',
    [ headers => ['X-Forwarded-For: 10.0.0.1'] ],
    [ headers => ['X-Forwarded-For: ::ffff:10.0.0.2'] ]);
two('a user of an application and none', '/identity', [ headers => ['X-User: a'] ],
    []);
two('another user of an application', '/identity',
    [ headers => ['X-User: a'] ], [ headers => ['X-User: b'] ]);
two('another scope', '/scope', [ headers => ['X-Scope: a'] ],
    [ headers => ['X-Scope: b'] ]);


# --- another body is another operation, never a conflict ---------------------

two('another body', '/', [], [ body => 'comment=me+two' ]);
two('no body', '/', [], [ body => '' ]);
two('another type', '/', [], [ type => 'text/plain' ]);
two('another coding', '/', [], [ headers => ['Content-Encoding: gzip'] ]);
two('another spelling, by the bytes', '/raw', [ body => 'a=1&b=2' ],
    [ body => 'b=2&a=1' ]);
two('a field that is not ignored', '/', [ body => 'a=1&csrf=x' ],
    [ body => 'a=1&csrf=y' ]);
two('another method', '/', [], [ method => 'PATCH' ]);
two('another host', '/', [], [ host => 'other' ]);
two('other arguments', '/', [], [ query => '&x=1' ]);
two('other files', '/',
    map { [ type => 'multipart/form-data; boundary=x',
            body => "--x\r\nContent-Disposition: form-data; name=f; "
                    . "filename=f\r\n\r\n" . 'x' x 100_000
                    . "$_\r\n--x--\r\n" ] } 1, 2);
{
    $id++;
    is(join(', ', map { told($n->post("$_?id=$id", type => $form,
                                      body => 'a=1')) } qw(/a /b /a /b)),
       '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED', 'two: another path');
}


# --- keys beside it ----------------------------------------------------------

is(clicks('/', [], [ key => 'beside' ], [ key => 'beside' ], []),
   '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED',
   'a key and the content are two tokens');
is(executions($id), 2, '... each executed once');
is(clicks('/', [ key => 'bound' ], [ key => 'bound', body => 'a=1' ]),
   '200 NEW, 409 CONFLICT', 'a key is bound as ever');
{
    $id++;
    my $token = click('/')->header('X-Token');
    is(told(click('/', key => $token)), '200 NEW',
       'a key that reads like the token is none');
    is(clicks('/', [ key => '"x' ]), '400 MALFORMED',
       'a malformed key is not a missing one');
}


# --- GET ---------------------------------------------------------------------

$id++;
is(join(', ', map { told($n->get("/?id=$id")) } 1, 2), '200 -, 200 -',
   'GET is not touched');
is(clicks('/', ([ method => 'GET', body => '' ]) x 2), '200 -, 200 -',
   '... with no body either');


# --- the window --------------------------------------------------------------

{
    $id = 'window';
    my $t = time;
    is(told(click('/short')), '200 NEW', 'a window of 300 ms');

    my $r;
    ok(until_true { ($r = told(click('/short'))) eq '200 NEW' },
       '... ends, though it was asked for all the time');
    cmp_ok(time - $t, '>=', 0.28, '... not before its time');
    is(executions($id), 2, '... executed again');

    is(told(click('/short', key => 'window')), '200 NEW',
       'a key has the other window');
    sleep 0.5;
    is(told(click('/short', key => 'window')), '200 REPLAYED',
       '... which has not ended');
    is(told(click('/short')), '200 NEW', '... as this one has again');
}

{
    $id = 'long';
    is(told(click('/long')), '200 NEW', 'a window of 60 s, of 300 ms for keys');
    is(told(click('/long', key => 'long')), '200 NEW', '... a key');
    ok(until_true { told(click('/long', key => 'long')) eq '200 NEW' },
       '... is free after 300 ms');
    is(told(click('/long')), '200 REPLAYED', '... the content is not');
}


# --- outcomes ----------------------------------------------------------------

is(clicks('/store', ([ query => '&status=500' ]) x 2), '500 NEW, 500 NEW',
   'an outcome that does not bind');
is(clicks('/', ([ query => '&status=500' ]) x 2), '500 NEW, 500 REPLAYED',
   'an outcome that does');
is(clicks('/', ([ query => '&h=X-Accel-Idempotency:%20release' ]) x 2),
   '200 NEW, 200 NEW', 'released by the upstream');
is(clicks('/down', [], []), '502 NEW, 502 NEW', 'no upstream: released');
is(clicks('/', ([ query => '&close=1' ]) x 2), '502 NEW, 502 REPLAYED',
   'an upstream that closed: in doubt');
is(clicks('/dry', [], []), '200 NEW_DRY_RUN, 200 REPLAYED_DRY_RUN',
   'a dry run');
is(executions($id), 2, '... executes both');

# A cookie that the answer sets belongs to who asked with it: without one, a
# replay has none.
{
    $id = 'cookie';
    my @r = map { click('/', query => '&h=Set-Cookie:%20a=1') } 1, 2;
    is(join(' ', map { $_->has('Set-Cookie') ? 1 : 0 } @r), '1 0',
       'no Set-Cookie for who has no identity');

    $id = 'cookies';
    @r = map { click('/', query => '&h=Set-Cookie:%20a=1',
                     headers => ['Cookie: s=1']) } 1, 2;
    is(join(' ', map { $_->has('Set-Cookie') ? 1 : 0 } @r), '1 1',
       'Set-Cookie for who has one');
}

# Access control comes first, here as elsewhere: see t/access.t.

done_testing();
