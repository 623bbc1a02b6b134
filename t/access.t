# SPEC, "What a request gets" 2: access control first. Whoever may not ask gets
# no replay and claims nothing, under `satisfy all` and `satisfy any`.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use MIME::Base64;


# The client's address is what X-Addr says; everybody has the same identity, so
# that nothing but access control can keep a stranger away.

my $n = nginx(files => { 'htpasswd' => "user:{PLAIN}good\n" },
              http => <<'EOC', server => <<'EOC');
    limit_req_zone $http_x_limit zone=rate:1m rate=1r/m;
    limit_conn_zone $http_x_limit zone=conns:1m;
EOC
    idempotency zone=z;
    idempotency_identity everybody;
    idempotency_in_progress reject;

    set_real_ip_from 127.0.0.1;
    real_ip_header X-Addr;

    add_header X-Status $idempotency_status always;

    location /basic {
        auth_basic closed;
        auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /access {
        allow 10.0.0.1;
        deny all;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /request {
        auth_request /auth;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /all/ {
        satisfy all;
        allow 10.0.0.1;
        deny all;
        auth_basic closed;
        auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /all/request { auth_request /auth;
                                proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    location /any/ {
        satisfy any;
        allow 10.0.0.1;
        deny all;
        auth_basic closed;
        auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /any/request { auth_request /auth;
                                proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    location /any/small-buffer {
        satisfy any;
        client_body_buffer_size 1k;
        allow 10.0.0.1;
        deny all;
        auth_basic closed;
        auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /open {
        satisfy any;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location = /auth {
        internal;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        proxy_pass http://$TEST_NGINX_BACKEND/auth?id=auth&status=$http_x_auth;
    }

    location /methods {
        limit_except GET { allow 10.0.0.1; deny all; }
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /rate {
        limit_req zone=rate;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /conns {
        limit_conn conns 1;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /hold {
        idempotency off;
        limit_conn conns 1;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # an error page that would be protected if it were a request
    location /page/ {
        error_page 401 403 413 503 @page;
        client_max_body_size 1k;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /page/rate {
            limit_req zone=rate;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /page/auth {
            auth_basic closed;
            auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /page/any {
            satisfy any;
            deny all;
            auth_basic closed;
            auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    # the same with the page's own status, and with none of its own
    location /page200/ {
        error_page 401 403 413 503 =200 @page;
        client_max_body_size 1k;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /page200/rate {
            limit_req zone=rate;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /page200/auth {
            auth_basic closed;
            recursive_error_pages on;
            auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /page200/any {
            satisfy any;
            deny all;
            auth_basic closed;
            auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /page=/ {
        error_page 401 403 413 503 = @page;
        client_max_body_size 1k;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /page=/rate {
            limit_req zone=rate;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /page=/auth {
            auth_basic closed;
            auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /page=/any {
            satisfy any;
            deny all;
            auth_basic closed;
            auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location @page {
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        rewrite ^ /page?id=page-$arg_id? break;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

my %addr = (home => '10.0.0.1', away => '10.0.0.2');
my %auth = (good => 'Basic ' . encode_base64('user:good', ''),
            bad => 'Basic ' . encode_base64('user:bad', ''));

sub as {
    my ($path, $who, %o) = @_;

    my ($addr, $auth, $sub) = @$who;

    return $n->post("$path?id=$id", key => $id, body => 'b', %o,
                    headers => [ 'X-Addr: ' . $addr{$addr // 'home'},
                                 $auth{$auth // ''}
                                     ? "Authorization: $auth{$auth}" : (),
                                 'X-Auth: ' . ($sub // 200) ]);
}

# Some request as $stranger is refused and leaves nothing; some as $friend
# executes and is replayed; the stranger gets nothing of that either.

sub kept_out {
    my ($path, $stranger, $friend, $status, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;

    subtest $name => sub {
        is(told(as($path, $stranger)), "$status -", 'refused');
        is(told(as($path, $stranger)), "$status -", '... again');
        is(executions($id), 0, '... and executed nothing');

        is(told(as($path, $friend)), '200 NEW',
           'nothing was claimed: the first with permission is new');
        is(told(as($path, $friend)), '200 REPLAYED', '... and replayed');

        my $r = as($path, $stranger);
        is(told($r), "$status -", 'no replay without permission');
        unlike($r->{raw}, qr/exec|replayed|problem/i, '... nothing of it');
        is(told(as($path, $stranger, body => 'other')), "$status -",
           '... and no conflict either');

        is(told(as($path, $friend)), '200 REPLAYED', 'all as it was');
        is(executions($id), 1, 'executed once');
    };
}

# A duplicate of what is pending.

sub kept_out_pending {
    my ($path, $stranger, $friend, $status, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;

    subtest $name => sub {
        my ($addr, $auth, $sub) = @$friend;
        my $c = $n->start('POST', "$path?id=$id&gate=1", key => $id,
                          body => 'b',
                          headers => [ "X-Addr: $addr{$addr // 'home'}",
                                       $auth ? "Authorization: $auth{$auth}"
                                             : (),
                                       'X-Auth: ' . ($sub // 200) ]);
        held($id);
        is(told(as($path, $stranger)), "$status -", 'refused, not held');
        go($id);
        is(told($c->response), '200 NEW', 'the owner ends');
        is(executions($id), 1, 'executed once');
    };
}


# --- one of them -------------------------------------------------------------

kept_out('/basic', [ 'home', $_ ], [ 'home', 'good' ], 401, "auth_basic, $_")
    for qw(none bad);

kept_out('/access', [ 'away' ], [ 'home' ], 403, 'allow and deny');

kept_out('/request', [ 'home', '', $_ ], [ 'home', '', 200 ], $_,
         "auth_request, $_") for 401, 403;
kept_out('/request', [ 'home', '', 404 ], [ 'home', '', 200 ], 500,
         'auth_request that fails');

kept_out('/methods', [ 'away' ], [ 'home' ], 403, 'limit_except');

kept_out_pending('/basic', [ 'home', 'bad' ], [ 'home', 'good' ], 401,
                 'auth_basic while pending');
kept_out_pending('/access', [ 'away' ], [ 'home' ], 403,
                 'deny while pending');
kept_out_pending('/request', [ 'home', '', 403 ], [ 'home', '', 200 ], 403,
                 'auth_request while pending');


# --- all of them -------------------------------------------------------------

my @friend = ('home', 'good', 200);

for my $path ('/all/x', '/all/request') {
    for my $addr (qw(home away)) {
        for my $auth (qw(good bad none)) {
            for my $sub ($path =~ /request/ ? (200, 401, 403) : 200) {
                my $status = $addr eq 'away' ? 403
                           : $auth ne 'good' ? 401 : $sub;

                next if $status == 200;

                kept_out($path, [ $addr, $auth, $sub ], \@friend, $status,
                         "satisfy all, $path: $addr, $auth, $sub");
            }
        }
    }
}

kept_out_pending('/all/x', [ 'away', 'good' ], \@friend, 403,
                 'satisfy all while pending');


# --- any of them -------------------------------------------------------------

for my $path ('/any/x', '/any/small-buffer', '/any/request') {
    for my $addr (qw(home away)) {
        for my $auth (qw(good bad none)) {
            for my $sub ($path =~ /request/ ? (200, 401, 403) : 0) {
                my $name = "satisfy any, $path: $addr, $auth, $sub";
                my $may = $addr eq 'home' || $auth eq 'good' || $sub == 200;
                my %o = (body => 'b' x ($path =~ /small/ ? 20000 : 1));

                if ($may) {
                    $id++;
                    my @who = ([ $addr, $auth, $sub ]) x 2;
                    my @r = map { as($path, $_, %o) } @who;

                    is(join(', ', map { told($_) } @r),
                       '200 NEW, 200 REPLAYED', $name);
                    is($r[1]{body}, $r[0]{body}, '... the same');
                    is(executions($id), 1, '... executed once');
                    is(told(as($path, $who[0], %o, body => 'other')),
                       '409 CONFLICT', '... the body was looked at');

                    next;
                }

                # of 401 and 403 nginx prefers 401
                kept_out($path, [ $addr, $auth, $sub ], $_, 401,
                         "$name, against $_->[0]")
                    for [ 'home', 'none', 401 ], [ 'away', 'good', 401 ];
            }
        }
    }
}

kept_out_pending('/any/x', [ 'away', 'bad' ], [ 'away', 'good' ], 401,
                 'satisfy any while pending, by password');
kept_out_pending('/any/x', [ 'away', 'bad' ], [ 'home' ], 401,
                 'satisfy any while pending, by address');

# One friend's operation is another's: both may ask, identity is the same.
$id++;
is(join(', ', map { told(as('/any/x', $_)) } [ 'home', 'none' ],
                                             [ 'away', 'good' ]),
   '200 NEW, 200 REPLAYED', 'satisfy any: two ways in, one token');

# Nobody controls anything: satisfy any with no access rule lets all in.
$id++;
is(join(', ', map { told(as('/open', [ $_ ])) } qw(home away)),
   '200 NEW, 200 REPLAYED', 'satisfy any without rules');

# A body in two parts, under both.
for my $path ('/all/x', '/any/x', '/any/small-buffer') {
    for my $chunked ([ 'a' x 3000, 'b' x 9000 ], 0) {
        $id++;
        my @r = map {
            as($path, \@friend, body => 'a' x 3000 . 'b' x 9000,
               chunked => $chunked)
        } 1, 2;
        is(join(', ', map { told($_) } @r), '200 NEW, 200 REPLAYED',
           "$path, a body" . ($chunked ? ', chunked' : ''));
    }
}


# Nor is a stranger asked for a body.

for my $path ('/basic', '/all/x', '/any/x', '/any/request') {
    for my $auth (qw(bad good)) {
        $id++;
        my $c = $n->connect;
        $c->{method} = 'POST';
        $c->send("POST $path?id=$id HTTP/1.1\r\nHost: localhost\r\n"
                 . "Authorization: $auth{$auth}\r\nIdempotency-Key: $id\r\n"
                 . 'X-Addr: ' . ($path =~ /any/ ? '10.0.0.2' : '10.0.0.1')
                 . "\r\nX-Auth: 403\r\nContent-Length: 1\r\n"
                 . "Expect: 100-continue\r\n\r\n");

        # the body of a friend is: its request goes on only with it
        $c->send('b') if $auth eq 'good';

        my $r = $c->response;
        is(told($r), $auth eq 'good' ? '200 NEW' : '401 -',
           "$path, Expect: 100-continue, $auth");
        is(scalar @{$r->{interim}}, $auth eq 'good' ? 1 : 0,
           $auth eq 'good' ? '... is asked for its body' : '... is not asked');
    }
}


# --- before access control ---------------------------------------------------

sub limited {
    my ($path, $limit, $key) = @_;

    return told($n->post("$path?id=$key", key => $key, body => 'b',
                         headers => [ "X-Limit: $limit" ]));
}

is(limited('/rate', 'a', 'rate1'), '200 NEW', 'limit_req: within the rate');
is(limited('/rate', 'a', 'rate2'), '503 -', 'limit_req: over it');
is(limited('/rate', 'a', 'rate1'), '503 -', '... a replay counts as well');
is(executions('rate2'), 0, '... executes nothing');
is(limited('/rate', 'b', 'rate2'), '200 NEW', '... and claimed nothing');

my $c = $n->start('POST', '/hold?id=hold&gate=1', body => 'b',
                  headers => [ 'X-Limit: a' ]);
held('hold');
is(limited('/conns', 'a', 'conn1'), '503 -', 'limit_conn: over it');
is(executions('conn1'), 0, '... executes nothing');
is(limited('/conns', 'b', 'conn1'), '200 NEW', '... and claimed nothing');
go('hold');
is($c->response->{status}, 200, '... the other connection ends');
is(limited('/conns', 'b', 'conn1'), '200 REPLAYED', '... and is replayed');


# --- at an error page --------------------------------------------------------

# Who was turned away is sent on, method and all, to a location of a page that
# is protected itself: that request claims nothing there either.

limited('/rate', 'c', 'rate3');

for my $case (map {
         my ($page, @status) = @$_;

         ([ 'limit_req', $status[0] // 503, "$page/rate",
            { headers => [ 'X-Limit: c' ] }, {} ],
          [ 'auth_basic', $status[0] // 401, "$page/auth", {},
            { headers => [ "Authorization: $auth{good}" ] } ],
          [ 'satisfy any', $status[0] // 401, "$page/any", {},
            { headers => [ "Authorization: $auth{good}" ] } ],
          [ 'a body too large', $status[0] // 413, "$page/x",
            { body => 'b' x 2000 }, {} ],
          [ 'a body too large, chunked', $status[0] // 413, "$page/x",
            { chunked => [ 'b' x 1000, 'b' x 1000 ] }, {} ])
     } [ '/page' ], [ '/page200', 200 ], [ '/page=', 200 ])
{
    my ($what, $status, $path, $bad, $good) = @$case;

    $id++;
    $what .= " at $path";

    my $ask = sub { $n->post("$path?id=$id", key => $id, body => 'b', @_) };

    for my $name ("$what, with an error page", '... again') {
        my $r = $ask->(%$bad);

        is(told($r), "$status -", $name);
        like($r->{body}, qr/id=page-$id\n/, '... gets that page');
        ok(!$r->replayed, '... and no replay of it');
    }

    is(executions($id), 0, '... executed nothing');
    is(executions("page-$id"), 2, '... but the page, each time');

    is(told($ask->(%$good)), '200 NEW', '... claimed nothing');
    is(told($ask->(%$good)), '200 REPLAYED', '... a good one is replayed');
    is(told($ask->(%$bad)), "$status -", '... not to one who is turned away');
    is(executions($id), 1, '... and executed once');
}

done_testing();
