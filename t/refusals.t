# docs/refusals.md: what a refused client is told, in which form, and what
# error_page may make of it.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use Pages ();
use Digest::SHA qw(sha256_base64);

# How to be refused: where, the status, whether the same again can help,
# Retry-After, the title, a piece of the sentence, and what is sent, as "key body":
# the last is refused.
my %way = (
    CONFLICT    => [ '/', 409, 'false', '', 'Idempotency key already used for another request',
                     'What differs: body\.', 'k one', 'k other' ],
    IN_PROGRESS => [ '/', 409, 'true', '1', 'A request with this idempotency key is being processed', '', 'k b' ],
    NOT_KEPT    => [ '/small', 409, 'false', '', 'The request was executed but its response was not kept',
                     'status 200', 'k b', 'k b' ],
    SIMILAR     => [ '/similar', 409, 'false', '', 'The same content was just sent with another key', '',
                     'k ID', 'k2 ID' ],
    EXPIRED     => [ '/expired', 409, 'false', '', 'Idempotency key too old', '',
                     '01890000-0000-7000-8000-000000000000 b' ],
    LIMITED     => [ '/limited', 429, 'true', '86(?:400|3\d\d)', 'Too many operations', '', 'k b', 'k2 b' ],
    UNAVAILABLE => [ '/full', 503, 'true', '(?:[5-9]|1[0-5])',
                     'Duplicate requests cannot be recognised at the moment', '', 'k b' ],
    MISSING     => [ '/', 400, 'false', '', 'Idempotency key required', '', ' b' ],
    MALFORMED   => [ '/', 400, 'false', '', 'Malformed idempotency key', '', '" b' ],
);

# where all of these can be met
sub places {
    my ($more) = @_;

    return <<'EOC' . ($more // '');
idempotency zone=z;
idempotency_in_progress reject;
idempotency_missing_key reject;
large_client_header_buffers 4 64k;
add_header X-Refusal $idempotency_refusal always;
add_header X-Detail $idempotency_detail always;

location / { proxy_pass http://backend; }
location /small { idempotency_max_response 4; proxy_pass http://backend; }
location /similar { idempotency_similar reject; proxy_pass http://backend; }
location /expired { idempotency_key_format uuid7; proxy_pass http://backend; }
location /limited { idempotency_quota 1 $arg_id; proxy_pass http://backend; }
location /full { idempotency zone=full; proxy_pass http://backend; }
location = /refused.html { root html; }
EOC
}

sub post {
    my $c = Idempotency::Connection->new(server_port_for_client());
    $c->send(Idempotency::message(POST => @_, close => 1));
    my $r = $c->response;
    $c->closed;
    return $r;
}

my $n = 0;

# A section of our own, `refused`: names, or NAME=status. A block's sections say
# of each what is expected of it, with %NAME%, %name%, %status%, %again%, %retry%,
# %title%, %detail% and %id% in them.
add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => ($block->http_config // '') . "idempotency_zone zone=full:32k; # memory alone\n")
        if $block->config =~ /zone=full/;

    my @refused = map { [ split /=/ ] } split ' ', $block->refused // return;
    my %said = map { $_ => $block->$_ // '' } qw(more_headers response_headers_like response_body_like);
    my %set = map { $_ => [] } qw(request error_code), keys %said;
    my ($init, @statuses) = '';

    for (@refused) {
        my ($name, $code) = @$_;
        my ($path, $status, $again, $retry, $title, $detail, @sent) = @{$way{$name}};
        my $id = ++$n . "-$name";
        my $uri = "$path?id=$id" . ($name eq 'IN_PROGRESS' ? '&gate=1' : '');
        my %value = (NAME => $name, name => lc $name, status => $code // $status, again => $again,
                     retry => $retry, title => $title, detail => $detail, id => $id);

        $init .= "pending(POST => '$uri', key => '$id-k', body => 'b');" if $name eq 'IN_PROGRESS';
        $init .= 'my $i; 1 while post("/full?id=full", key => "full-" . ++$i)->{status} == 200;'
            if $name eq 'UNAVAILABLE';

        for my $i (0 .. $#sent) {
            my ($key, $body) = split / /, $sent[$i] =~ s/ID/$id/r =~ s/^k/$id-k/r;
            my $last = $i == $#sent;

            push @{$set{request}}, "POST $uri\n$body";
            push @{$set{more_headers}}, "Idempotency-Key: $key\n$said{more_headers}";
            push @{$set{error_code}}, $last ? $value{status} : 200;
            push @{$set{response_body_like}}, $last ? $said{response_body_like} =~ s/%(\w+)%/$value{$1}/gr : '';
            push @{$set{response_headers_like}}, $last ? $said{response_headers_like} =~ s/%(\w+)%/$value{$1}/gr
                                                       : "X-Refusal:\nX-Detail:\nLink:\nRetry-After:";
            push @statuses, $last ? $name : 'NEW';
        }
    }

    $block->set_value($_ => $set{$_}) for keys %set;
    $block->set_value(idempotency_status => "@statuses");
    $block->set_value(init => "package main; $init");
    $block->set_value(requests => scalar @statuses);
});

# what is shorter or longer than its Content-Length is but a warning to Test::Nginx
my $warn = $SIG{__WARN__};
$SIG{__WARN__} = sub { fail($_[0]) if $_[0] =~ /truncated|extra bytes/; $warn->(@_) };

# all pages have one style, whose hash a policy may name
add_response_body_check(sub {
    my ($block, $body) = @_;

    my ($style) = $body =~ m{<style>(.*?)</style>}s or return;
    my $hash = sha256_base64($style =~ s/\r\n/\n/gr);
    ok(index(Pages::text('docs/refusals.md'), "'sha256-$hash='") > 0, $block->name . ' - documented style');
});

our $firefox = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\n";
our $form = "Referer: https://localhost/form?a=1&b=2\n";
our $all = 'CONFLICT NOT_KEPT SIMILAR EXPIRED MISSING MALFORMED IN_PROGRESS LIMITED UNAVAILABLE';

# A page that posts, reloads and fetches nothing by itself, says what happened and
# what to do, in words of people, and leads to these places.
my $leads = '(?:href|src|url|action)\s*=\s*"?';

sub page {
    my ($to) = @_;

    return '(?si)\A(?=<!doctype html>.*<title>[^<]{4,}</title>.*</html>\s*\z)'
           . '(?!.*(?:<form|<script[^>]*src=|http-equiv=.?refresh))'
           . '(?=(?:.*<p>(?!<a)[^<]{20,}[.]</p>){2})(?!(?:.*<p>(?!<a)[^<]{20,}[.]</p>){3})'
           . '(?!.*>[^<{]*(?:idempoten|token|\bkey\b|request))' . leading($to // ());
}

sub leading { return "(?:(?!$leads).)*" . CORE::join('', map { "$leads\Q$_\E\"(?:(?!$leads).)*" } @_) . '\z' }

our $problem = '\A\{"type":"urn:idempotency:%name%","title":"%title%","status":%status%,'
               . '"detail":"(?=[^"]*%detail%)\w[^"\\\\%]{10,}",'
               . '"instance":"/\w*\?id=%id%[^"]*","retryable":%again%\}\r\n\z';
our $shape = '\A\{"error":\{"code":"%name%","message":"(?=[^"]*%detail%)\w[^"\\\\]{10,}"\}\}\z';
our $kept = 'CONFLICT NOT_KEPT MISSING MALFORMED IN_PROGRESS';

# where a page may lead to: a Referer, and its path
our @referers = ([ 'http://localhost/', '/' ], [ 'https://localhost/form', '/form' ],
    [ 'HTTPS://LOCALHOST/form', '/form' ],
    [ 'https://localhost/a/b.html?x=1&y="z"', '/a/b.html?x=1&amp;y=&quot;z&quot;' ],
    [ 'https://localhost/f%C3%BC', '/f%C3%BC' ],
    [ 'https://localhost/form?then=//x/%2F%0A', '/form?then=//x/%2F%0A' ]);

# where not
our @elsewhere = ((map { "https://localhost$_" } '', '//evil.example/x', '///evil.example/x', '/\\evil.example/x',
    '/\\/evil.example/x', '\\evil.example/x', "/\t/evil.example/x", '/ /evil.example/x', "/\x01x", "/\x7fx",
    "/\xc3\xbc", '/%2Fevil.example/x', '/%2fevil.example/x', '/%5Cevil.example/x', '/%09/evil.example/x',
    '/%0d%0aLocation:x', '/%00', '/%252Fevil.example/x', '/%2e%2e/evil', '/.//evil.example/x',
    '/..//evil.example/x', '/x//evil.example', '/%', '/%2', '/%zz', '/form#x', ':444/form',
    '.evil.example/form', '@evil.example/form'),
    'https://user@localhost/form', 'https://evil.example/form', '//localhost/form', '/form',
    'javascript:alert(1)', 'ftp://localhost/form', 'about:blank', '');

our $markup = '<script>alert(1)</script>"\'&';
our @evil = ("/28?x=$markup", '/28/<b>"q"</b>', '/28/%3Cscript%3Ealert(1)%3C/script%3E',
             '/28/%22%5C%01%0A%0D%09%7F', "/28/\\\"\\", "/28/\xff\xfe\xc3\x28?\xf0\x9f\x92\xa9",
             '/28/%ff%fe?%ed%a0%80', '/28?</title></html><!--', '/28?' . '"<' x 10000);

run_tests();

__DATA__

=== TEST 1: a problem for programs (RFC 9457), which says whether the same again can help
--- config eval: places()
--- refused eval: $::all
--- response_headers_like eval
"Content-Type: application/problem[+]json\nX-Refusal: %name%\nRetry-After: %retry%\nIdempotent-Replayed:\nLink:"
--- response_body_like eval: $::problem

=== TEST 2: not_kept names the original's status
--- request eval: [ map { ("POST /small?status=$_") x 2 } 201, 503 ]
--- more_headers eval: [ map { ("Idempotency-Key: 4-$_") x 2 } 201, 503 ]
--- error_code: 201 409 503 409
--- idempotency_status: NEW NOT_KEPT NEW NOT_KEPT
--- response_body_like eval: [ '', '"detail":"[^"]*\b201\b', '', '"detail":"[^"]*\b503\b' ]

=== TEST 3: a page for people; nothing was executed, so it leads back to the form
--- refused: MISSING MALFORMED LIMITED UNAVAILABLE
--- more_headers eval: $::firefox . $::form
--- response_headers_like
Content-Type: text/html; charset=utf-8
Retry-After: %retry%
--- response_body_like eval: page('/form?a=1&amp;b=2')

=== TEST 4: a page for people; it may have been executed, so it leads nowhere
--- refused: CONFLICT NOT_KEPT SIMILAR EXPIRED IN_PROGRESS
--- more_headers eval: $::firefox . $::form
--- response_headers_like
Content-Type: text/html; charset=utf-8
Retry-After: %retry%
--- response_body_like eval: page()

=== TEST 5: a page only where Accept prefers text/html to JSON
--- request: POST /7
--- more_headers eval
[ '', map({ "Accept: $_" } '', '*/*', 'application/json', 'application/problem+json', 'application/*',
  'application/json, text/plain, */*', 'application/json, text/html;q=0.9',
  'text/html;q=0.1, application/problem+json', 'text/html;q=0.5, */*;q=0.8', 'text/html;q=0',
  'text/html;q=0.000, */*', 'text/html;q=0.8, application/*;q=0.9', 'text/htmlx', 'xtext/html', 'text/plain',
  'image/png', 'garbage', ',;,q=;'), "Accept: application/json\nAccept: text/html;q=0.5" ]
--- idempotency_status: MISSING
--- response_headers: Content-Type: application/problem+json

=== TEST 6: ... and then always
--- request: POST /8
--- more_headers eval
[ map({ "Accept: $_" } 'text/html', 'TEXT/HTML', 'text/html;level=1', 'text/html ; q=1.000', 'text/html;Q=0.5',
  'text/html, */*;q=0.8', '*/*;q=0.8,text/html', 'text/html;q=0.9, application/json;q=0.5',
  'application/json;q=0.899, text/html;q=0.9', 'application/json;q=0, text/html;q=0.1',
  'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,'
  . 'application/signed-exchange;v=b3;q=0.7'),
  $::firefox, "Accept: application/json;q=0.5\nAccept: text/html" ]
--- idempotency_status: MISSING
--- response_headers: Content-Type: text/html; charset=utf-8

=== TEST 7: $idempotency_detail is its sentence
--- config eval
places(q(sub_filter_types *; sub_filter '"detail":"$sent_http_x_detail"' '"detail":told';))
--- refused eval: $::all
--- response_body_like: ,"detail":told,

=== TEST 8: a body that can't be read for the key in it: the problem and the page say why
--- config
location / {
    idempotency zone=z;
    idempotency_key $idempotency_field_token;
    idempotency_normalize_buffer 1k;
    add_header X-Detail $idempotency_detail always;
    sub_filter_types *;
    sub_filter '"detail":"$sent_http_x_detail"' '"detail":told';
    proxy_pass http://backend;
}
--- request eval: [ map { my $r = "POST /9\ntoken=$_"; $r, $r } 'x', 'x' x 100_000 ]
--- more_headers eval
[ map { my $coding = $_; map { "Content-Type: application/x-www-form-urlencoded\n$coding$_" } '', $::firefox . $::form }
      "Content-Encoding: gzip\n", '' ]
--- idempotency_status: MALFORMED
--- response_headers_like eval
[ map { "X-Detail: .*\\b$_\\b.*" } ('cannot be read') x 2, ('too large') x 2 ]
--- response_body_like eval
my $page = page('/form?a=1&amp;b=2');
[ map { ('"detail":told,.*"retryable":false', "(?=.*$_)$page") } 'could not be read', 'too large' ]
--- executions: 0

=== TEST 9: a worker that dies leaves its token in doubt; its page leads nowhere
--- config
idempotency zone=z;
idempotency_docs https://example.com/idempotency;
location / { if ($http_x_dry) { rewrite ^ /dry? last; } proxy_pass http://backend; }
location /dry { idempotency_dry_run on; proxy_pass http://backend; }
--- init
my $c = Idempotency::Connection->new(server_port_for_client());
$c->send(Idempotency::message(POST => '/?id=10&gate=1', key => 10, body => 'b'));
Idempotency::held(10);
my $master = Test::Nginx::Util::get_pid_from_pidfile('');
open my $f, '<', "/proc/$master/task/$master/children" or die;
my @workers = split ' ', <$f>;
kill KILL => @workers;
$c->closed;
--- request eval: [ map { "POST /?id=10&gate=1\n$_" } qw(b b b c) ]
--- more_headers eval
[ map { "Idempotency-Key: 10\n$_" } $::firefox . $::form, '', ('X-Dry: 1') x 2 ]
--- idempotency_status: IN_DOUBT IN_DOUBT IN_DOUBT_DRY_RUN CONFLICT_DRY_RUN
--- error_log: exited on signal 9
--- response_headers_like eval
[ ("Link: <https://example.com/idempotency>; rel=\"describedby\"\nRetry-After:") x 2, ('Link:') x 2 ]
--- response_body_like eval
[ page(), '"type":"https://example.com/idempotency#in_doubt",.*"retryable":false', '', '' ]

=== TEST 10: where the content stands for the key, a pending page goes back by itself
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key content;
    idempotency_in_progress reject;
    proxy_pass http://backend;
}
--- init: pending(POST => '/?id=11&gate=1', body => 'b');
--- request
POST /?id=11&gate=1
b
--- more_headers eval: [ map { "${main::firefox}Referer: $$_[0]" } @::referers ]
--- idempotency_status: IN_PROGRESS
--- response_body_like eval: [ map { '(?si)\A' . leading(($$_[1]) x 2) } @::referers ]

=== TEST 11: ... but only to a path of this host that is safe
--- init: pending(POST => '/?id=12&gate=1', body => 'b');
--- request
POST /?id=12&gate=1
b
--- more_headers eval: [ $::firefox, map { "${main::firefox}Referer: $_" } @::elsewhere ]
--- idempotency_status: IN_PROGRESS
--- response_body_like eval: '(?si)\A' . leading()

=== TEST 12: idempotency_docs: the base of the type, and a Link
--- config eval: places('idempotency_docs https://example.com/idempotency;')
--- refused eval: $::all
--- response_headers_like: Link: <https://example.com/idempotency>; rel="describedby"
--- response_body_like: "type":"https://example.com/idempotency#%name%"

=== TEST 13: idempotency_docs: a Link of a page, too, and of nothing else
--- refused eval: $::all
--- more_headers eval: $::firefox
--- response_headers_like: Link: <https://example.com/idempotency>; rel="describedby"

=== TEST 14: idempotency_status
--- config eval
places('idempotency_status conflict=422 in_progress=425 not_kept=410 missing=428 malformed=418;')
--- refused: CONFLICT=422 IN_PROGRESS=425 NOT_KEPT=410 MISSING=428 MALFORMED=418
--- response_body_like eval: $::problem

=== TEST 15: idempotency_status: the others keep theirs
--- config eval: places('idempotency_status conflict=422;')
--- refused: CONFLICT=422 IN_PROGRESS MISSING MALFORMED

=== TEST 16: error_page: a file
--- config eval: places('error_page 400 409 /refused.html;')
--- user_files
>>> refused.html
a page of ours
--- refused eval: $::kept
--- response_headers_like: X-Refusal: %name%
--- response_body_like: \Aa page of ours\n\z

=== TEST 17: error_page leaves what an upstream says by itself, first or again
--- request eval: [ ('POST /17?status=409') x 2, 'GET /17?status=409' ]
--- more_headers: Idempotency-Key: 17
--- error_code: 409
--- idempotency_status: NEW REPLAYED -
--- response_body_like: exec=

=== TEST 18: error_page: another status
--- config eval: places('error_page 409 =202 @page; location @page { return 200 "ours"; }')
--- refused: CONFLICT=202

=== TEST 19: error_page: a status that was set
--- config eval
places('idempotency_status conflict=422; error_page 422 =422 @page; location @page { return 200 "ours"; }')
--- refused: CONFLICT=422
--- response_body_like: \Aours\z

=== TEST 20: error_page: a named location
--- config eval: places('error_page 400 409 = @named; location @named { return 460 "named\n"; }')
--- refused: CONFLICT=460 IN_PROGRESS=460 MISSING=460 MALFORMED=460

=== TEST 21: error_page: a proxied location, asked once for each; what it says is no outcome
--- config eval
places('error_page 400 409 @proxied;
        location @proxied { rewrite ^ /page?body=page? break; proxy_pass http://backend; }')
--- refused: CONFLICT IN_PROGRESS MISSING MALFORMED
--- response_body_like: \Apage\z
--- executions: 5

=== TEST 22: what error_page made of a refusal is no outcome of the token
--- request eval: [ map { "POST /23\n$_" } qw(one other one) ]
--- more_headers: Idempotency-Key: 23
--- idempotency_status: NEW CONFLICT REPLAYED

=== TEST 23: an API's own shape, by name or by URI: the variables are there behind the redirect
--- config eval
[ map { my ($page, $location) = @$_;
        places(qq(error_page 400 409 $page; location $location { default_type application/json; return 200 )
               . q('{"error":{"code":"$idempotency_refusal","message":"$idempotency_detail"}}'; })) }
      [ '@shape', '@shape' ], [ '/shape.json', '= /shape.json' ] ]
--- refused eval: $::kept
--- response_headers_like
Content-Type: application/json
Retry-After: %retry%
--- response_body_like eval: $::shape

=== TEST 24: where nothing is refused there is no name for it, nor in a dry run
--- config eval: places('location /dry { idempotency_dry_run on; proxy_pass http://backend; }')
--- request eval: [ ("POST /26\nb") x 2, "POST /dry\none", "POST /dry\nother" ]
--- more_headers eval: [ map { "Idempotency-Key: 26-$_" } 1, 1, 2, 2 ]
--- idempotency_status: NEW REPLAYED NEW_DRY_RUN CONFLICT_DRY_RUN
--- response_headers
! X-Refusal
! X-Detail

=== TEST 25: no refusal is recorded
--- config eval: places()
--- init: pending(POST => '/?id=27&gate=1', key => '27-p', body => 'b');
--- request eval
[ map({ "POST /27\n$_" } qw(b b b c c b)), ("POST /?id=27&gate=1\nb") x 2, ('POST /small') x 4 ]
--- more_headers eval
[ map { "Idempotency-Key: $_" } '"', '', (27) x 4, ('27-p') x 2, ('27-s') x 4 ]
--- idempotency_status
MALFORMED MISSING NEW CONFLICT CONFLICT REPLAYED IN_PROGRESS IN_PROGRESS NEW NOT_KEPT NOT_KEPT NOT_KEPT
--- executions: 2

=== TEST 26: nothing of the URI is echoed unescaped
--- request eval: [ map { "POST $_" } @::evil ]
--- idempotency_status: MISSING
--- raw_response_headers_like: \A[ -~\r\n]*\z
--- response_body_like eval
'\A\{"type":"[^"]*","title":"[^"]*","status":400,"detail":"[^"]*",'
. '"instance":"[\w:/?#\[\]@!\$&\'()*+,;=%.~-]+","retryable":false\}\r\n\z'

=== TEST 27: nothing of the URI is on a page, which leads home without a Referer
--- request eval: [ map { "POST $_" } @::evil ]
--- more_headers eval: $::firefox
--- idempotency_status: MISSING
--- raw_response_headers_like: \A[ -~\r\n]*\z
--- response_body_like: (?i)\A(?=.*<a href="/">)(?!.*(?:<script|<b>|<!--|</html>.*</html>))[ -~\r\n]*</html>\r\n\z

=== TEST 28: what nginx refuses by itself is no refusal of ours
--- request eval: [ 'POST /30/%00', "POST /30?\x7f\x01\x1f" ]
--- error_code: 400
--- idempotency_status: -

=== TEST 29: nothing of the key or the body comes back
--- request eval
[ map { my $first = $_; map { "POST /31?$first\n$_" } $first, $::markup, $::markup } 'a', 'b' ]
--- more_headers eval
[ map { my $more = $_; map { "Idempotency-Key: $_\n$more" } ($::markup) x 2, "\"$::markup" } '', $::firefox ]
--- idempotency_status: NEW CONFLICT MALFORMED CONFLICT CONFLICT MALFORMED
--- response_body_unlike: alert
