# docs/directives.md, idempotency_bind, and docs/variables.md, $idempotency_reason:
# what belongs to the action, and why a conflict is one.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

our $form = 'application/x-www-form-urlencoded';

# a request with this key, a form of Alice's, and these lines

sub alice {
    my $key = shift;

    return [ map "Idempotency-Key: $key\nContent-Type: $form\nCookie: s=alice\n$_", @_ ];
}

sub reasons { return [ map "X-Reason: [$_]", @_ ] }

# in which way a request differs from POST / of Alice, and how that is called

our %differs = (action => 'PATCH', identity => 'bob', body => 'a=2');
our @parts = map [ split ' ' ], 'action', 'identity', 'body', 'action identity',
                 'action body', 'identity body', 'action identity body';

run_tests();

__DATA__

=== TEST 1: a value that belongs to the action, also where it is empty
--- http_config
map $arg_lang $lang { default $arg_lang; "" none; }
idempotency_bind $http_x_version;
server {
    listen 127.0.0.1:$TEST_NGINX_CLIENT_PORT;
    server_name two;
    idempotency zone=z;
    idempotency_bind $http_x_a $http_x_b;
    idempotency_bind $http_x_c;
    add_header X-Reason "[$idempotency_reason]" always;
    location / { proxy_pass http://backend; }
}
--- config
idempotency zone=z;
add_header X-Reason "[$idempotency_reason]" always;
add_header X-Token $idempotency_token always;

location / { proxy_pass http://backend; }
location /own {
    idempotency_bind "$http_accept;$lang";
    proxy_pass http://backend;
    location /own/below { proxy_pass http://backend; }
}
location /field {
    idempotency_bind $idempotency_field_to;
    idempotency_ignore_fields to note;
    proxy_pass http://backend;
}
location /dry { idempotency_dry_run on; proxy_pass http://backend; }
location /missing { idempotency_missing_key reject; proxy_pass http://backend; }
location /content { idempotency_missing_key content; proxy_pass http://backend; }
location /similar { idempotency_similar reject; proxy_pass http://backend; }
--- request eval: "POST /"
--- more_headers eval
[map({ "Idempotency-Key: version\n$_" } ('X-Version: 1') x 2, 'X-Version: 2', ''),
 map({ "Idempotency-Key: empty\n$_" } '', '', 'X-Version: 1', 'X-Other: 1')]
--- error_code: 200 200 409 409 200 200 409 200
--- idempotency_status: NEW REPLAYED CONFLICT CONFLICT NEW REPLAYED CONFLICT REPLAYED
--- response_headers eval: reasons('', '', 'action', 'action', '', '', 'action', '')

=== TEST 2: several of them, which do not run together; those of http are replaced
--- request: POST /
--- more_headers eval
[map "Host: two\nIdempotency-Key: several\n$_", map join("\n", map "X-$_", split),
 ('A:1 B:2 C:3') x 2, 'A:1 B:2', 'A:12 C:3', 'A:2 B:1 C:3', 'A:1 B:2 C:3 Version:9']
--- error_code: 200 200 409 409 409 200
--- idempotency_status: NEW REPLAYED CONFLICT CONFLICT CONFLICT REPLAYED
--- response_headers eval: reasons('', '', ('action') x 3, '')

=== TEST 3: a string, here and below
--- request eval: [map { ("POST $_") x 3 } '/own', '/own/below']
--- more_headers eval
[map { my $key = $_; map "Idempotency-Key: $key\n$_",
                         'Accept: a', "Accept: a\nX-Version: 2", 'Accept: b' } qw(own below)]
--- error_code: 200 200 409 200 200 409
--- idempotency_status eval: 'NEW REPLAYED CONFLICT ' x 2

=== TEST 4: a field of the body
--- request eval: [map "POST /field\n$_", 'to=a&note=1', 'note=2&to=a', 'to=b&note=1']
--- more_headers eval: "Idempotency-Key: field\nContent-Type: $::form"
--- error_code: 200 200 409
--- response_headers eval: reasons('', '', 'action')

=== TEST 5: it is a part of a token of content
--- request: POST /content
--- more_headers eval: [map "X-Version: $_", 1, 2, 1]
--- idempotency_status: NEW NEW REPLAYED

=== TEST 6: ... and not of one by key
--- request: POST /
--- more_headers eval: [map "Idempotency-Key: token\nX-Version: $_", 1, 2]
--- error_code: 200 409
--- response_headers: X-Token: 4b7c2691c7058cc5d6362730369aa2cb0dfb393bf5452f411c86ef9d4bf43cad

=== TEST 7: why: what differs, and all of it
--- request eval
[map { my %is = map { $_ => 1 } @$_;
       ("POST /\na=1", ($is{action} ? 'PATCH' : 'POST') . " /\na=" . ($is{body} ? 2 : 1)) } @::parts]
--- more_headers eval
[map { my $n = $_; map "Idempotency-Key: why-$n\nContent-Type: $::form\nCookie: s=$_",
       'alice', grep({ $_ eq 'identity' } @{$::parts[$n]}) ? 'bob' : 'alice' } 0 .. $#::parts]
--- error_code eval: [(200, 409) x @::parts]
--- response_headers eval: reasons(map { ('', join ',', @$_) } @::parts)

=== TEST 8: why: the host and the arguments are the action's, the type is the body's
--- request eval: ["POST /\na=1", "POST /?x=1\na=1", ("POST /\na=1") x 4]
--- more_headers eval
[@{alice('arguments', '', '')}, @{alice('host', 'Host: two', 'Host: elsewhere')},
 @{alice('type', '')}, "Idempotency-Key: type\nCookie: s=alice\nContent-Type: text/plain"]
--- error_code: 200 409 200 409 200 409
--- response_headers eval: reasons('', 'action', '', 'action', '', 'body')

=== TEST 9: why: in a dry run
--- request: POST /dry
--- more_headers eval: [map "Idempotency-Key: dry\nCookie: s=$_", qw(alice bob)]
--- idempotency_status: NEW_DRY_RUN CONFLICT_DRY_RUN
--- response_headers eval: reasons('', 'identity')

=== TEST 10: nothing else has a why
--- request eval: ['POST /missing', ('POST /similar') x 2]
--- more_headers eval: ['', "Idempotency-Key: a", "Idempotency-Key: b"]
--- error_code: 400 200 409
--- idempotency_status: MISSING NEW SIMILAR
--- response_headers eval: reasons('', '', '')

=== TEST 11: it is in the log, and in the problem document
--- request eval: [map "POST /\n$_", 'a=1', 'a=2']
--- more_headers eval: alice('told', '', '')
--- error_code: 200 409
--- response_body_like eval: ['exec', '"detail":"[^"]* What differs: body\."']
--- error_log eval: qr/refused with status 409.*conflict, reason: body, token: [0-9a-f]{64}, zone: "z"/

=== TEST 12: ... but not for a stranger, who learns nothing of what he has met, nor in a page
--- request eval: [map "POST /\n$_", 'a=1', 'a=2', 'a=2']
--- more_headers eval
[@{alice('untold', '')}, alice('untold', '')->[0] =~ s/alice/bob/r, @{alice('untold', 'Accept: text/html')}]
--- error_code: 200 409 409
--- response_body_unlike: differs

=== TEST 13: the host as it is meant: without letter case, a port and a dot at its end
--- request: POST /host
--- more_headers eval: [map "Idempotency-Key: hosts\nHost: $_", 'two', 'Two', 'two:80', 'two.', 'two:8080']
--- idempotency_status: NEW REPLAYED REPLAYED REPLAYED REPLAYED

=== TEST 14: an absolute URI names the host as well
--- request eval: ['POST /absolute', 'POST http://two/absolute']
--- more_headers eval: [map "Idempotency-Key: absolute\nHost: $_", 'two', 'localhost']
--- idempotency_status: NEW REPLAYED

=== TEST 15: HTTP/1.0 may leave the host out
--- raw_request eval
join '', map { join "\r\n", ('POST /old HTTP/1.0', 'Idempotency-Key: old', 'Content-Length: 0', @$_, '', '') }
             ['Host: two', 'Connection: keep-alive'], []
--- ignore_response
--- idempotency_status: NEW REPLAYED

=== TEST 16: why: a body is not compared as before, as the settings have changed
The action is what was asked for, wherever it is rewritten to.
--- config
idempotency zone=z;
add_header X-Reason "[$idempotency_reason]" always;
location / { rewrite ^ /$http_x_to last; }
location /base { proxy_pass http://backend; }
location /off { idempotency_normalize off; proxy_pass http://backend; }
location /buffer { idempotency_normalize_buffer 100; proxy_pass http://backend; }
location /fields { idempotency_ignore_fields a 1; proxy_pass http://backend; }
location /cookies { idempotency_ignore_cookies a; proxy_pass http://backend; }
location /bind { idempotency_ignore_fields a; idempotency_bind 0; proxy_pass http://backend; }
location /identity { idempotency_identity me; proxy_pass http://backend; }
--- request eval: [("POST /settings\none", "POST /settings\nother") x 9]
--- more_headers eval
my $n;
[map { $n++; map "Idempotency-Key: settings-$n\nX-To: $_", @$_ }
 map([ 'base', $_ ], qw(base off buffer fields cookies bind identity)), [ 'fields', 'base' ],
 [ 'fields', 'bind' ]]
--- error_code eval: [(200, 409) x 9]
--- response_headers eval
reasons(map { ('', $_) } 'body', ('body,settings') x 4, 'action,body,settings',
        'body,settings', 'body,settings', 'action,body,settings')
