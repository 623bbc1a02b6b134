# docs/requests.md 2: access control first. Who may not ask gets no
# replay and claims nothing, under `satisfy all` and `satisfy any`.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use MIME::Base64;

# Everybody has the same identity, so that nothing but access control can keep a
# stranger away. Who it is: an address, what the password is, what auth_request says.
sub who {
    my ($addr, $auth, $sub) = split ' ', $_[0];

    return "X-Addr: 10.0.0." . ($addr eq 'home' ? 1 : 2) . "\nX-Auth: " . ($sub // 200)
           . ($auth eq 'none' ? '' : "\nAuthorization: Basic " . encode_base64("user:$auth", ''));
}

my $id = 0;

# A case is a path, a stranger and a friend. The stranger is refused, twice; the
# friend executes and is replayed; the stranger gets nothing of that, no conflict
# either; and all is as it was.
sub requests {
    return [ map { my $uri = "$_->[0]?id=" . ++$id; map { "POST $uri\n$_" } ('b') x 5, 'other', 'b' } @_ ];
}

sub senders {
    return [ map { my ($s, $f) = map { who($_) } @$_[1, 2]; ($s, $s, $f, $f, $s, $s, $f) } @_ ];
}

my ($something, $nothing) = ('(?i:exec)', '\A(?!.*(?i:exec|replayed|problem))');
our @seen = map { $_ ? $something : $nothing } 0, 0, 1, 1, 0, 0, 1;
our $told = '- - NEW REPLAYED - - REPLAYED ';

sub codes { return [ map { ($_, $_, 200, 200, $_, $_, 200) } @_ ] }

my @everybody = map { my $addr = $_; map { my $auth = $_; map { "$addr $auth $_" } 200, 401, 403 }
                                         qw(good bad none) } qw(home away);
my @strangers = grep { !/home|good|200/ } @everybody;

our @one = ([ '/basic', 'home none', 'home good' ], [ '/basic', 'home bad', 'home good' ],
            [ '/access', 'away none', 'home none' ], [ '/methods', 'away none', 'home none' ],
            map { [ '/request', "home none $_", 'home none' ] } 401, 403, 404);
our @all = ((map { [ '/all', $_, 'home good' ] } grep { !/home good/ && /200/ } @everybody),
            map { [ '/all/request', $_, 'home good' ] } grep { !/home good 200/ } @everybody);
our @any = map { my $friend = $_;
                 ((map { [ '/any', $_, $friend ], [ '/any/small', $_, $friend ] } 'away bad', 'away none'),
                  map { [ '/any/request', $_, $friend ] } @strangers) } 'home none 401', 'away good 401';

# a path, who may ask, and a body
our @may = ((map { [ '/any', $_, 'b' ], [ '/any/small', $_, 'b' x 20000 ] }
                 'home good', 'home bad', 'home none', 'away good'),
            map { [ '/any/request', $_, 'b' ] } grep { /home|good|200/ } @everybody);

# a path, a stranger and a friend
our @pending = ([ '/basic', 'home bad', 'home good' ], [ '/access', 'away none', 'home none' ],
                [ '/request', 'home none 403', 'home none' ], [ '/all', 'away good', 'home good' ],
                [ '/any', 'away bad', 'away good' ], [ '/any', 'away bad', 'home none' ]);

# what turns somebody away, in front of an error page: a path; a bad body, a good
# one; headers that make it bad, and good ones; the status
my $password = substr who('home good'), -length('Authorization: Basic ' . encode_base64('user:good', ''));
our @turned = map {
    my ($page, $status) = @$_;

    ([ "$page/rate", 'b', 'b', 'X-Limit: c', '', $status // 503 ],
     [ "$page/auth", 'b', 'b', '', $password, $status // 401 ],
     [ "$page/any", 'b', 'b', '', $password, $status // 401 ],
     [ "$page/x", 'b' x 2000, 'b', '', '', $status // 413 ],
     [ "$page/x", sprintf("3e8\r\n%s\r\n" x 2 . "0\r\n\r\n", ('b' x 1000) x 2), 'b', 'Transfer-Encoding: chunked', '',
       $status // 413 ])
} [ '/page' ], [ '/page200', 200 ], [ '/page=', 200 ];

run_tests();

__DATA__

=== TEST 1: each access control alone
An auth_request that fails is refused with 500.
--- http_config
limit_req_zone $http_x_limit zone=rate:1m rate=1r/m;
limit_conn_zone $http_x_limit zone=conns:1m;
--- config
idempotency zone=z;
idempotency_key $arg_id;
idempotency_identity everybody;
idempotency_in_progress reject;
set_real_ip_from 127.0.0.1;
real_ip_header X-Addr;
auth_basic_user_file ../html/htpasswd;

location /free { proxy_pass http://backend; }
location /basic { auth_basic closed; proxy_pass http://backend; }
location /access { allow 10.0.0.1; deny all; proxy_pass http://backend; }
location /request { auth_request /auth; proxy_pass http://backend; }
location /methods { limit_except GET { allow 10.0.0.1; deny all; } proxy_pass http://backend; }

location /all {
    satisfy all;
    allow 10.0.0.1;
    deny all;
    auth_basic closed;
    proxy_pass http://backend;
    location /all/request { auth_request /auth; proxy_pass http://backend; }
}

location /any {
    satisfy any;
    allow 10.0.0.1;
    deny all;
    auth_basic closed;
    proxy_pass http://backend;
    location /any/request { auth_request /auth; proxy_pass http://backend; }
    location /any/small { client_body_buffer_size 1k; proxy_pass http://backend; }
}

location /open { satisfy any; proxy_pass http://backend; }

location = /auth {
    internal;
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
    proxy_pass http://backend/auth?status=$http_x_auth;
}

location /rate { limit_req zone=rate; proxy_pass http://backend; }
location /conns { limit_conn conns 1; proxy_pass http://backend; }
location /hold { idempotency off; limit_conn conns 1; proxy_pass http://backend; }
--- user_files
>>> htpasswd
user:{PLAIN}good
--- request eval: requests(@::one)
--- more_headers eval: senders(@::one)
--- error_code eval: codes(401, 401, 403, 403, 401, 403, 500)
--- idempotency_status eval: $::told x 7
--- response_body_like eval: [ (@::seen) x 7 ]
--- raw_response_headers_like eval: [ (@::seen) x 7 ]

=== TEST 2: satisfy all, whatever of it is missing
--- request eval: requests(@::all)
--- more_headers eval: senders(@::all)
--- error_code eval
codes(map { $$_[1] =~ /away/ ? 403 : $$_[1] !~ /good/ ? 401 : substr $$_[1], -3 } @::all)
--- idempotency_status eval: $::told x @::all
--- response_body_like eval: [ (@::seen) x @::all ]
--- raw_response_headers_like eval: [ (@::seen) x @::all ]

=== TEST 3: satisfy any, against who comes from home and who has the password
Of 401 and 403 nginx prefers 401.
--- request eval: requests(@::any)
--- more_headers eval: senders(@::any)
--- error_code eval: codes((401) x @::any)
--- idempotency_status eval: $::told x @::any
--- response_body_like eval: [ (@::seen) x @::any ]
--- raw_response_headers_like eval: [ (@::seen) x @::any ]

=== TEST 4: satisfy any, for who may ask: the body is looked at
--- request eval
my $n = 0;
[ map { my ($path, undef, $body) = @$_; $n++;
        map { "POST $path?id=may$n\n$_" } $body, $body, 'other' } @::may ]
--- more_headers eval: [ map { (who($$_[1])) x 3 } @::may ]
--- idempotency_status eval: 'NEW REPLAYED CONFLICT ' x @::may

=== TEST 5: two ways in, one token; satisfy any without rules lets all in
--- request eval: [ ("POST /any?id=ways") x 2, ("POST /open?id=open") x 2 ]
--- more_headers eval
[ map { who($_) } 'home none', 'away good', 'home none', 'away none' ]
--- idempotency_status: NEW REPLAYED NEW REPLAYED
--- executions: 2

=== TEST 6: a large body, in one piece and in chunks
--- request eval
my @body = ('a' x 3000 . 'b' x 9000, sprintf "bb8\r\n%s\r\n2328\r\n%s\r\n0\r\n\r\n", 'a' x 3000, 'b' x 9000);
[ map { my $path = $_; map { my $r = "POST $path?id=body$path$_\n$body[$_]"; ($r, $r) } 0, 1 }
      '/all', '/any', '/any/small' ]
--- more_headers eval
[ map { (who('home good') . $_) x 2 } ('', "\nTransfer-Encoding: chunked") x 3 ]
--- idempotency_status eval: 'NEW REPLAYED ' x 6

=== TEST 7: who may not ask is refused, not held, while one is pending
--- init
for my $i (0 .. $#::pending) {
    my ($path, undef, $friend) = @{$::pending[$i]};
    pending(POST => "$path?id=pending$i&gate=1", body => 'b', headers => [ split "\n", who($friend) ]);
}
--- request eval
[ map { "POST $::pending[$_][0]?id=pending$_&gate=1\nb" } 0 .. $#::pending ]
--- more_headers eval: [ map { who($$_[1]) } @::pending ]
--- error_code: 401 403 403 403 401 401
--- idempotency_status: -

=== TEST 8: limit_req: over the rate nothing is replayed, executed or claimed
--- request eval: [ map { "POST /rate?id=rate$_\nb" } 1, 2, 1, 2 ]
--- more_headers eval: [ map { "X-Limit: $_" } qw(a a a b) ]
--- error_code: 200 503 503 200
--- idempotency_status: NEW - - NEW
--- executions: 2

=== TEST 9: limit_conn: over the limit nothing is executed or claimed
--- init: pending(POST => '/conns?id=hold&gate=1', headers => [ 'X-Limit: a' ]);
--- request eval: [ ("POST /conns?id=conn1\nb") x 3 ]
--- more_headers eval: [ map { "X-Limit: $_" } qw(a b b) ]
--- error_code: 503 200 200
--- idempotency_status: - NEW REPLAYED
--- executions: 1

=== TEST 10: who is turned away claims nothing at its error page, either
The page's location is protected itself: each gets the page, and no replay of it.
--- http_config
limit_req_zone $http_x_limit zone=rate:1m rate=1r/m;
--- config eval
my @pages = ([ '/page', '', 'off' ], [ '/page200', '=200', 'on' ], [ '/page=', '=', 'off' ]);
my $pages = CORE::join '', map { my ($path, $page, $recursive) = @$_; <<"EOC" } @pages;
location $path/ {
    error_page 401 403 413 503 $page \@page;
    recursive_error_pages $recursive;
    client_max_body_size 1k;
    proxy_pass http://backend;

    location $path/rate { limit_req zone=rate; proxy_pass http://backend; }
    location $path/auth { auth_basic closed; proxy_pass http://backend; }
    location $path/any { satisfy any; deny all; auth_basic closed; proxy_pass http://backend; }
}
EOC
<<'EOC' . $pages;
idempotency zone=z;
idempotency_key $arg_id;
idempotency_identity everybody;
auth_basic_user_file ../html/htpasswd;

location /rate { limit_req zone=rate; proxy_pass http://backend; }

location @page {
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
    rewrite ^ /page?id=page-$arg_id? break;
    proxy_pass http://backend;
}
EOC
--- user_files
>>> htpasswd
user:{PLAIN}good
--- request eval
my $n = 0;
[ 'POST /rate?id=first',
  map { my ($path, $bad, $good) = @$_; $n++;
        map { "POST $path?id=turned$n\n$_" } $bad, $bad, $good, $good, $bad } @::turned ]
--- more_headers eval: [ 'X-Limit: c', map { @$_[3, 3, 4, 4, 3] } @::turned ]
--- error_code eval: [ 200, map { ($$_[5], $$_[5], 200, 200, $$_[5]) } @::turned ]
--- idempotency_status eval: 'NEW ' . '- - NEW REPLAYED - ' x @::turned
--- response_body_like eval
[ '', map { my $n = $_; map { "^exec=$_\n" } "1 id=page-turned$n", "2 id=page-turned$n",
            ("1 id=turned$n") x 2, "3 id=page-turned$n" } 1 .. @::turned ]

=== TEST 11: satisfy any: the body of who may not ask is not read
--- config
location / {
    idempotency zone=z;
    satisfy any;
    deny all;
    auth_basic closed;
    auth_basic_user_file ../html/htpasswd;
    client_max_body_size 1k;
    proxy_pass http://backend;
}
--- user_files
>>> htpasswd
user:{PLAIN}good
--- request eval: [ (sprintf "7d0\r\n%s\r\n0\r\n\r\n", 'b' x 2000) =~ s{^}{POST /\n}r ]
--- more_headers
Transfer-Encoding: chunked
Idempotency-Key: unread
--- error_code: 401
--- idempotency_status: -
