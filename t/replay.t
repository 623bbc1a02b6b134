#!/usr/bin/perl

# SPEC, "What a request gets" 5 and 6: a replay is the recorded response, byte
# by byte, and nginx's own filters act on it as they did on the original.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use IO::Uncompress::Gunzip qw(gunzip);
use POSIX ();

my $proxy = <<'EOC';
    proxy_pass http://$TEST_NGINX_BACKEND;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
EOC

# What a filter does is tried side by side: at /plain/NAME without and at
# /NAME with the module.

my %filters = (
    gzip    => 'gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
                gzip_http_version 1.0;',
    long    => 'gzip on; gzip_types *; gzip_min_length 10000;
                gzip_proxied any;',
    headers => 'add_header X-Added "here $request_method" always;
                add_header Set-Cookie "nginx=1"; expires max;',
    trailer => 'add_trailer X-Trailer "t $status";',
    sub     => 'sub_filter needle "pin and $arg_say"; sub_filter_once off;
                sub_filter_types *;',
    ssi     => 'ssi on; ssi_types *;',
    charset => 'charset koi8-r; source_charset utf-8; charset_types *;',
    utf8    => 'charset utf-8; charset_types *;',
    ranges  => 'proxy_force_ranges on;',
);

# Pairs of locations: the same, but for the module.

my $filters = join '', map {
    "location /plain/$_ { $filters{$_}\n$proxy }\n"
    . "location /$_ { $filters{$_}\nidempotency zone=big;\n$proxy }\n"
} sort keys %filters;

my $n = nginx(http => <<'EOC' . <<'EOC2', server => <<EOC3, workers => 2);
    idempotency_zone zone=big:64m;
    idempotency_keep any;
    charset_map koi8-r utf-8 { C1 D0B0; C2 D0B1; }
    log_format result '$request_uri $status $idempotency_status';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
EOC
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 http2;
        server_name localhost;
        idempotency zone=big;
        idempotency_in_progress reject;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 sndbuf=16k;
        idempotency zone=big;
        idempotency_in_progress reject;

        location / {
            proxy_pass http://$TEST_NGINX_BACKEND;
            proxy_buffer_size 4k;
            proxy_buffers 2 4k;
            proxy_busy_buffers_size 4k;
        }
    }
EOC2
    location / {
        idempotency zone=big;
        idempotency_in_progress reject;
$proxy
    }

    location /plainly {
        idempotency zone=big;
        proxy_pass http://\$TEST_NGINX_BACKEND;
    }

    location /unbuffered {
        idempotency zone=big;
        proxy_buffering off;
$proxy
    }

    location /pieces {
        idempotency zone=big;
        proxy_buffer_size 2k;
        proxy_buffers 4 2k;
        proxy_busy_buffers_size 2k;
$proxy
    }

    location /small {
        idempotency zone=big;
        idempotency_max_response 1k;
$proxy
    }

    location /passed {
        idempotency zone=big;
        proxy_pass_header Date;
        proxy_pass_header Server;
$proxy
    }

    location /redirect {
        idempotency zone=big;
        proxy_redirect http://inner/ /outer/;
$proxy
    }

    location /hide {
        idempotency zone=big;
        idempotency_hide_header X-Secret x-other;
$proxy
    }

    location /cookies/always {
        idempotency zone=big;
        idempotency_replay_cookies always;
$proxy
    }

    location /cookies/never {
        idempotency zone=big;
        idempotency_replay_cookies never;
$proxy
    }

    location /cookies/user {
        idempotency zone=big;
        idempotency_identity \$http_x_user;
$proxy
    }

    location /head {
        idempotency zone=big;
        idempotency_methods POST HEAD GET;
$proxy
    }

    location /page {
        return 200 included;
    }

$filters
EOC3

my $key = 0;
my @me = ('Authorization: Basic bWU6cHc=');


# Runs a request three times: an execution and two replays.

sub replayed {
    my ($name, $uri, $query, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $k = 'k' . ++$key;
    my $target = "$uri?id=$k&$query";

    my $first = $n->post($target, key => $k, body => 'b', headers => [@me],
                         %o);

    for my $again (1, 2) {
        same_replay($first, $n->post($target, key => $k, body => 'b',
                                     headers => [@me], %o),
                    "$name: replay $again");
    }

    is(executions($k), 1, "$name: executed once");

    return $first;
}


# --- status and reason, header lines ----------------------------------------

{
    my $r = replayed('created', '/x', 'status=201&reason=Made%20It'
                     . '&h=Location:%20http://other/things/1');
    is($r->{line}, 'HTTP/1.1 201 Made It', 'the reason passes');

    $r = replayed('no reason', '/x', 'status=200&reason=');
    like($r->{line}, qr{^HTTP/1.1 200 ?$}, 'no reason passes');

    $r = replayed('no content', '/x', 'status=204&h=ETag:%20%22e%22');
    is($r->{status}, 204, 'no content passes');
    ok(!$r->has('Content-Length'), 'no content, no length');

    for my $location ('/things/1', 'http://localhost/things/1', 'things/1',
                      'http://inner/things/1', '//other/x')
    {
        for my $at ('/x', '/redirect') {
            $r = replayed("303 at $at to $location", $at,
                          "status=303&h=Location:%20$location");
            is($r->{status}, 303, "303 at $at to $location passes");
        }
    }

    for my $status (202, 206, 226, 299, 301, 304, 307, 308, 400, 402, 403, 404,
                    409, 410, 418, 422, 429, 451, 499, 500, 501, 502, 503, 504,
                    507, 599)
    {
        $r = replayed("status $status", '/x',
                      "status=$status&reason=Own%20Words&h=ETag:%20%22e%22");
        is($r->{status}, $status, "status $status passes");
    }
}

{
    # repeated lines, lines in lists of nginx's own, names in any spelling
    my @lines = (
        'Set-Cookie: a=1; Path=/; HttpOnly', 'X-First: 1',
        'Set-Cookie: b=2; Path=/', 'x-ODD_name.1: odd', 'X-Empty:',
        'Cache-Control: no-store', 'Link: </a>; rel="next"',
        'Cache-Control: private', 'Link: </b>; rel="prev"', 'Vary: Accept',
        'Vary: Cookie', 'ETag: "strong"', 'X-Twice: one', 'X-Twice: two',
        'Last-Modified: Mon, 28 Sep 1970 06:00:00 GMT',
        'Expires: Mon, 28 Sep 2030 06:00:00 GMT', 'Content-Language: de',
        'Content-Encoding: identity', 'Accept-Ranges: bytes',
        'Set-Cookie: a=1; Path=/; HttpOnly', "X-Bytes: \xc3\xa4 \"q\" \\ ;=",
        'Retry-After: 3', 'Refresh: 5; url=http://localhost/r',
        'Content-Disposition: attachment; filename="x y.pdf"',
        'X-Long: ' . 'l' x 3000, 'Allow: POST',
    );
    my $query = join '&', map {
        (my $l = $_) =~ s/([^\w])/sprintf '%%%02X', ord $1/ge;
        "h=$l";
    } @lines;

    my $r = replayed('many header lines', '/x', $query);

    my %twice = map { $_ => 1 } @lines;
    my @got = grep $twice{$_}, @{$r->{lines}};
    is(scalar(grep /^Set-Cookie/, @got), 3, 'all the cookies pass');
    ok($r->has('ETag') && $r->header('X-Twice') eq 'one, two',
       'repetitions pass');

    $r = replayed('authentication', '/x', 'status=401'
                  . '&h=WWW-Authenticate:%20Basic%20realm=%22a%22'
                  . '&h=WWW-Authenticate:%20Bearer');
    is($r->header('WWW-Authenticate'), 'Basic realm="a", Bearer',
       'two challenges pass');

    $r = replayed('date and server of the upstream', '/passed',
                  'h=Date:%20Mon,%2028%20Sep%201970%2006:00:00%20GMT'
                  . '&h=Server:%20theirs/1');
    is($r->header('Date'), 'Mon, 28 Sep 1970 06:00:00 GMT',
       "the upstream's date passes");

    my $again = $n->post("/passed?id=k$key&h=Date:%20Mon,%2028%20Sep%201970%20"
                         . '06:00:00%20GMT&h=Server:%20theirs/1',
                         key => "k$key", body => 'b', headers => [@me]);
    ok($again->replayed, 'date and server of the upstream: replayed');
    is($again->header('Date'), 'Mon, 28 Sep 1970 06:00:00 GMT',
       "the upstream's date is replayed, and only that");

    for my $type ('text/html; charset=windows-1251', 'application/json',
                  'text/plain;charset="UTF-8"; x=y', 'odd',
                  'multipart/mixed; boundary=b', 'TEXT/HTML')
    {
        (my $q = $type) =~ s/([^\w])/sprintf '%%%02X', ord $1/ge;
        $r = replayed("type $type", '/x', "ct=$q");
    }

    $r = replayed('no content type', '/x', 'noct=1');
}

# Connection, Keep-Alive and the like belong to one hop.

{
    my @hop = ('Connection: X-Hop', 'Keep-Alive: timeout=5', 'Upgrade: h2c',
               'TE: trailers', 'Trailer: X-T', 'Proxy-Connection: close',
               'Proxy-Authenticate: Basic');
    my $query = join '&', 'id=hop',
                map { (my $l = $_) =~ s/([^\w])/sprintf '%%%02X', ord $1/ge;
                      "h=$l" } @hop, 'X-Kept: yes';

    my @r = map { $n->post("/x?$query", key => 'hop', body => '') } 1, 2;

    ok($r[1]->replayed, 'hop-by-hop: replayed');
    is($r[1]->header('X-Kept'), 'yes', 'hop-by-hop: the others are kept');

    for (qw(Keep-Alive Upgrade TE Trailer Proxy-Connection
            Proxy-Authenticate))
    {
        ok(!$r[1]->has($_), "hop-by-hop: $_ is not replayed");
    }

    is($r[1]->header('Connection'), 'keep-alive',
       'hop-by-hop: Connection is of this hop');
}


# --- bodies -----------------------------------------------------------------

for my $size (0, 1, 2, 4095, 4096, 4097, 65535, 65536, 65537, 1048575,
              1048576)
{
    for my $te ($size == 1048575 ? 'cl' : qw(cl chunked close)) {
        my $r = replayed("$size bytes, $te", '/x', "size=$size&te=$te");
        ok($r->{body} eq pattern($size, 1), "$size bytes, $te: pass");
    }
}

for my $where ('/unbuffered', '/pieces', '/gzip') {
    for my $te (qw(cl chunked close)) {
        for my $size (0, 1, 4096, 70001) {
            my $r = replayed("$size bytes, $te, at $where", $where,
                             "size=$size&te=$te");
            ok($r->{body} eq pattern($size, 1),
               "$size bytes, $te, at $where: pass");
        }
    }
}

{
    my $r = replayed('in two halves', '/x', 'size=5000&bdelay=20');
    is(length $r->{body}, 5000, 'in two halves: pass');
    replayed('in two chunks', '/x', 'size=5000&bdelay=20&te=chunked');
}


# --- too large --------------------------------------------------------------

for (['/x', 1048577, 'cl'], ['/x', 1048577, 'chunked'],
     ['/x', 3000000, 'close'], ['/small', 1025, 'cl'],
     ['/small', 1025, 'chunked'], ['/small', 100000, 'close'])
{
    my ($at, $size, $te) = @$_;
    my $k = 'k' . ++$key;
    my $name = "$size bytes, $te, at $at";
    my $uri = "$at?id=$k&size=$size&te=$te&status=201&h=X-Kept:%20yes";

    my $r = $n->post($uri, key => $k, body => '');
    is($r->{status}, 201, "$name: passes");
    ok($r->{body} eq pattern($size, 1), "$name: untouched");
    is($r->header('X-Kept'), 'yes', "$name: with its header");

    for my $again (1, 2) {
        $r = $n->post($uri, key => $k, body => '');
        is($r->{status}, 409, "$name: repeat $again is refused");
        ok(!$r->has('Idempotent-Replayed'),
           "$name: repeat $again is no replay");
        like($r->{body}, qr/\b201\b/, "$name: the original status is named");
    }

    is(executions($k), 1, "$name: executed once");
}

{
    my $r = replayed('as large as may be', '/small', 'size=1024');
    is(length $r->{body}, 1024, 'as large as may be: pass');
    replayed('as large as may be, chunked', '/small', 'size=1024&te=chunked');
}

# The response broke off: nobody knows the rest.

for my $te (qw(cl chunked)) {
    my $uri = "/x?id=cut-$te&size=5000&cut=2000&te=$te&status=202";
    my $r = $n->post($uri, key => "cut-$te", body => '');

    is($r->{status}, 202, "cut off, $te: passes");
    ok($r->{broken}, "cut off, $te: as it is");

    $r = $n->post($uri, key => "cut-$te", body => '');
    is($r->{status}, 409, "cut off, $te: the repeat is refused");
    like($r->{body}, qr/\b202\b/, "cut off, $te: names the original status");
    is(executions("cut-$te"), 1, "cut off, $te: executed once");
}


# --- the marker -------------------------------------------------------------

{
    my $r = $n->get('/x?id=get', key => 'get');
    ok(!$r->has('Idempotent-Replayed'), 'no marker on an unlisted method');

    $r = $n->post('/x?id=nokey', body => '');
    ok(!$r->has('Idempotent-Replayed'), 'no marker without a key');

    # a line of that name that the upstream sends is not ours
    my @r = map { $n->post('/x?id=mark&h=X-A:%20b', key => 'mark',
                           body => '') } 1 .. 3;
    is_deeply([map { $_->header('Idempotent-Replayed') } @r],
              [undef, 'true', 'true'], 'the marker is on replays only');
}


# --- nginx's filters --------------------------------------------------------

# As the filter does it without the module, so must original and replay be.

sub filtered {
    my ($name, $where, $query, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $k = 'k' . ++$key;
    my $target = "/$where?id=$k&noexec=1&$query";
    my $plain = $n->post("/plain/$where?id=p$k&noexec=1&$query", body => 'b',
                         headers => [@me], %o);
    my $first = $n->post($target, body => 'b', key => $k, headers => [@me],
                         %o);

    same_message($plain, $first, "$name: the original is as without us");
    same_replay($first, $n->post($target, body => 'b', key => $k,
                                 headers => [@me], %o),
                "$name: the replay is as the original");

    is(executions($k), 1, "$name: executed once");

    return $first;
}

for my $te (qw(cl chunked close)) {
    my $r = filtered("add_header, $te", 'headers', "size=100&te=$te");
    is($r->header('X-Added'), 'here POST', "add_header, $te: it acted");
    like($r->header('Set-Cookie'), qr/nginx=1/, "add_header, $te: a cookie");

    $r = filtered("add_trailer, $te", 'trailer', "size=100&te=$te");
    is_deeply($r->{trailers}, ['X-Trailer: t 200'],
              "add_trailer, $te: it acted");

    $r = filtered("sub_filter, $te", 'sub',
                  "te=$te&say=hay&body=a%20needle%20is%20a%20needle");
    is($r->{body}, 'a pin and hay is a pin and hay',
       "sub_filter, $te: it acted");

    $r = filtered("ssi, $te", 'ssi', "te=$te&body="
                  . '%3C!--%23%20include%20virtual=%22/page%22%20--%3E!');
    is($r->{body}, 'included!', "ssi, $te: it acted");

    $r = filtered("charset, $te", 'charset', "te=$te&ct=text/html;"
                  . "%20charset=utf-8&body=%D0%B0%D0%B1");
    $r = filtered("charset from none, $te", 'charset',
                  "te=$te&body=%D0%B0%D0%B1");
    is($r->{body}, "\xc1\xc2", "charset from none, $te: it acted");

    $r = filtered("charset's name, $te", 'utf8', "te=$te&ct=text/html&body=abc");
    is($r->header('Content-Type'), 'text/html; charset=utf-8',
       "charset's name, $te: it acted");

    $r = filtered("X-Accel-Charset, $te", 'utf8',
                  "te=$te&ct=text/html&h=X-Accel-Charset:%20koi8-r&body=abc");
    is($r->header('Content-Type'), 'text/html; charset=koi8-r',
       "X-Accel-Charset, $te: the upstream's charset");

    $r = filtered("X-Accel-Charset off, $te", 'utf8',
                  "te=$te&ct=text/html&h=X-Accel-Charset:%20off&body=abc");
    is($r->header('Content-Type'), 'text/html',
       "X-Accel-Charset off, $te: none");
}

filtered('add_header on 404', 'headers', 'status=404&size=10');
filtered('add_header on 204', 'headers', 'status=204');
filtered('no sub_filter on an error', 'sub', 'status=500&body=needle');

# gzip is negotiated for each request by itself

{
    my @accept = (@me, 'Accept-Encoding: gzip');

    for my $te (qw(cl chunked close)) {
        for my $size (1, 5000, 70000) {
            my $k = 'k' . ++$key;
            my $query = "size=$size&te=$te&noexec=1&h=ETag:%20%22strong%22";
            my $uri = "/gzip?id=$k&$query";
            my $name = "gzip, $size bytes, $te";

            my $plain = $n->post("/plain/gzip?id=p$k&$query", body => '',
                                 headers => [@accept]);
            is($plain->header('Content-Encoding'), 'gzip',
               "$name: it acts without us");

            my @r = map {
                $n->post($uri, key => $k, body => '', headers => $_)
            } [@accept], [@accept], [@me], [@accept];

            for ($plain, @r[0, 1, 3]) {
                gunzip(\delete $_->{body}, \my $out);
                $_->{body} = $out;
            }

            same_message($plain, $r[0], "$name: the original as without us");
            same_replay($r[0], $r[1], "$name: the replay as the original");
            same_replay($r[0], $r[3], "$name: and once more");

            ok($r[2]->replayed, "$name: replayed for one who takes no gzip");
            ok(!$r[2]->has('Content-Encoding'), "$name: as it is then");
            ok($r[2]->{body} eq pattern($size, 1), "$name: with all bytes");
            is($r[2]->header('ETag'), '"strong"', "$name: the tag is strong");
            is($r[1]->header('ETag'), 'W/"strong"', "$name: or weak");
            is(executions($k), 1, "$name: executed once");
        }
    }

    # the length decides, and an unknown length is not the stored one
    filtered('gzip below its length', 'long', 'size=500',
             headers => [@accept]);

    my $r = filtered('gzip, length unknown', 'long', 'size=500&te=chunked',
                     headers => [@accept]);
    is($r->header('Content-Encoding'), 'gzip',
       'gzip, length unknown: it acted');
}

# ranges and conditions

{
    my $uri = '/ranges?id=range&size=1000&noexec=1&h=ETag:%20%22e%22';

    my %plain;
    my %want = (
        'Range: bytes=10-19'       => 206,
        'Range: bytes=-5'          => 206,
        'Range: bytes=5000-'       => 416,
        'Range: bytes=0-0,998-999' => 200,
        'If-Range: "e"'            => 200,
    );

    my $first = $n->post($uri, key => 'range', body => '');
    is($first->{status}, 200, 'the whole at first');
    is(length $first->{body}, 1000, 'the whole at first, of 1000 bytes');

    for (sort keys %want) {
        # the pattern depends on the execution: count from the same number
        (my $id = $_) =~ s/\W/-/g;
        (my $ref = $uri) =~ s/id=range/id=$id/;

        my $plain = $n->post("/plain$ref", body => '', headers => [$_]);
        my $again = $n->post($uri, key => 'range', body => '',
                             headers => [$_]);

        is($plain->{status}, $want{$_}, "$_: without us");

        same_message($plain, $again, "$_: on a replay as without us");
        ok($again->replayed, "$_: marked");
    }

    my $part = $n->post("$uri&part", key => 'part', body => '',
                        headers => ['Range: bytes=0-9']);
    is($part->{status}, 206, 'a range of the original');

    my $whole = $n->post("$uri&part", key => 'part', body => '');
    is($whole->{status}, 200, 'and all of it later');
    ok($whole->replayed && length $whole->{body} == 1000,
       'the range was not what was recorded');
    is(executions('range'), 2, 'ranges: executed once each');

    # a proxied answer to POST is no subject to conditions, with us or without
    for ('If-None-Match: "e"', 'If-None-Match: *', 'If-Match: "other"',
         'If-Modified-Since: Mon, 28 Sep 1970 06:00:00 GMT',
         'If-Unmodified-Since: Mon, 28 Sep 1960 06:00:00 GMT')
    {
        my $r = filtered($_, 'headers', 'size=10&h=ETag:%20%22e%22&h='
                         . 'Last-Modified:%20Mon,%2028%20Sep%201970%20'
                         . '06:00:00%20GMT', headers => [@me, $_]);
        is($r->{status}, 200, "$_: no 304");
    }

    my $uri2 = '/x?id=cond&h=ETag:%20%22e%22&h='
               . 'Last-Modified:%20Mon,%2028%20Sep%201970%2006:00:00%20GMT';
    $first = $n->post($uri2, key => 'cond', body => '');

    for ('If-None-Match: "e"', 'If-Match: "other"',
         'If-Modified-Since: Mon, 28 Sep 1970 06:00:00 GMT')
    {
        same_replay($first, $n->post($uri2, key => 'cond', body => '',
                                     headers => [$_]),
                    "a replay with $_");
    }
}


# --- hidden headers and cookies ---------------------------------------------

{
    my $uri = '/hide?id=hide&h=X-Secret:%201&h=X-Open:%20a&h=X-OTHER:%20b'
              . '&h=x-secret:%202';
    my ($first, $again)
        = map { $n->post($uri, key => 'hide', body => '') } 1, 2;

    is($first->header('X-Secret'), '1, 2', 'a hidden header passes at first');
    is($first->header('X-Other'), 'b', 'and so does another');
    ok($again->replayed, 'hidden: replayed');
    ok(!$again->has('X-Secret'), 'a hidden header is not replayed');
    ok(!$again->has('X-Other'), 'its name has no case');
    is($again->header('X-Open'), 'a', 'the others are');

    my @not = ('X-Secret', 'X-Other');
    @{$first->{lines}} = grep !/^X-(?:Secret|Other):/i, @{$first->{lines}};
    same_replay($first, $again, 'nothing else is missing');
}

for (['/x', [], 0, 'identified: nobody'],
     ['/x', ['Authorization: Bearer t'], 1, 'identified: credentials'],
     ['/x', ['Cookie: s=1'], 1, 'identified: a cookie'],
     ['/cookies/user', ['Cookie: s=1'], 0, 'identified: not by that'],
     ['/cookies/user', ['X-User: me'], 1, 'identified: by the own string'],
     ['/cookies/always', [], 1, 'always'],
     ['/cookies/never', ['Authorization: Bearer t'], 0, 'never'])
{
    my ($at, $headers, $with, $name) = @$_;
    my $k = 'k' . ++$key;
    my $uri = "$at?id=$k&h=Set-Cookie:%20a=1&h=X-Open:%20a"
              . '&h=set-cookie:%20b=2';
    my ($first, $again) = map { $n->post($uri, key => $k, body => '',
                                         headers => $headers) } 1, 2;

    is($first->header('Set-Cookie'), 'a=1, b=2',
       "cookies, $name: pass at first");

    if (!$with) {
        ok(!$again->has('Set-Cookie'), "cookies, $name: none");
        @{$first->{lines}} = grep !/^Set-Cookie:/i, @{$first->{lines}};
    }

    same_replay($first, $again, "cookies, $name");
}


# --- protocol versions, connections, methods --------------------------------

for my $te (qw(cl chunked close)) {
    my $k = 'k' . ++$key;
    my $uri = "/x?id=$k&size=3000&te=$te";

    my $new = $n->post($uri, key => $k, body => '');
    my $old = $n->post($uri, key => $k, body => '', version => '1.0');

    ok($old->replayed, "HTTP/1.0, $te: replayed");
    ok(!$old->{chunked}, "HTTP/1.0, $te: not chunked");
    ok($old->{body} eq $new->{body}, "HTTP/1.0, $te: the same body");
    is($old->header('Connection'), 'close', "HTTP/1.0, $te: closed");
    is($old->header('Content-Length') // '', $te eq 'cl' ? 3000 : '',
       "HTTP/1.0, $te: the length as it was known");

    $k = 'k' . ++$key;
    $uri = "/x?id=$k&size=3000&te=$te";
    $old = $n->post($uri, key => $k, body => '', version => '1.0');
    ok($old->{body} eq pattern(3000, 1), "HTTP/1.0 first, $te: passes");

    $new = $n->post($uri, key => $k, body => '');
    ok($new->replayed && $new->{body} eq $old->{body},
       "HTTP/1.0 first, $te: replayed to 1.1");
    is($new->header('Connection'), 'keep-alive',
       "HTTP/1.0 first, $te: kept alive");
    is(executions($k), 1, "HTTP/1.0 first, $te: executed once");
}

{
    # replays and executions in turn on one connection
    my $c = $n->connect;
    my @r;

    for my $k (qw(c1 c1 c2 c1 c2 c3)) {
        $c->send(message('POST', "/x?id=$k&size=100&te=chunked", key => $k,
                         body => 'b'));
        push @r, $c->response('POST');
    }

    same_replay($r[0], $r[1], 'one connection: replay');
    same_replay($r[0], $r[3], 'one connection: replay again');
    same_replay($r[2], $r[4], 'one connection: replay of another');
    is($r[5]->{status}, 200, 'one connection: and on');
    is_deeply([map { executions($_) } qw(c1 c2 c3)], [1, 1, 1],
              'one connection: each executed once');
}

{
    my @r = map { $n->request('HEAD', '/head?id=head&size=100',
                              key => 'head') } 1, 2;
    is($r[0]->header('Content-Length'), 100, 'HEAD: passes');
    same_replay(@r, 'HEAD: replayed');

    @r = map { $n->get('/head?id=geth&size=100', key => 'geth') } 1, 2;
    same_replay(@r, 'GET, where it is listed: replayed');

    my $r = $n->request('HEAD', '/head?id=geth&size=100', key => 'geth');
    is($r->{status}, 409, 'the key of a GET does not do for a HEAD');
}


# --- interim responses ------------------------------------------------------

{
    my $k = 'continue';
    my @m = (key => $k, body => 'b', headers => ['Expect: 100-continue']);
    my @r = map { $n->post("/x?id=$k", @m) } 1, 2;

    is(scalar @{$r[0]{interim}}, 1, '100 (Continue) passes');
    same_replay(@r, '100 (Continue) is not the outcome');

    # An upstream's: nginx knows them since 1.29. Before, it took them for
    # final, and what followed for their body: nobody can tell what happened.

    @r = map { $n->post('/plainly?id=hints&early=103%20Link:%20%3C/a%3E',
                        key => 'hints', body => 'b') } 1, 2;

    is($r[0]{body}, "exec=1 id=hints\n", '103 (Early Hints): passes');

    if (has_directive('early_hints 1;')) {
        same_replay(@r, '103 (Early Hints) is not the outcome');

    } else {
        is($r[1]{status}, 409, '103 (Early Hints) is not the outcome');
    }

    is(executions('hints'), 1, '103 (Early Hints): executed once');
}


# --- trailers of the upstream -----------------------------------------------

SKIP: {
    skip 'nginx passes no trailers before 1.27.2', 3
        unless has_directive('proxy_pass_trailers on;');

    my $t = nginx(server => <<EOC);
        idempotency zone=z;
        proxy_pass_trailers on;
        location / { proxy_set_header TE trailers;
                     proxy_pass http://\$TEST_NGINX_BACKEND;
                     proxy_http_version 1.1; }
EOC

    my @r = map { $t->post('/x?id=trailer&te=chunked&size=100'
                           . '&trailer=X-A:%20a&trailer=X-B:%20b'
                           . '&trailer=X-A:%20c', key => 'trailer',
                           body => '') } 1, 2;
    is_deeply($r[0]{trailers}, ['X-A: a', 'X-B: b', 'X-A: c'],
              'trailers pass');
    same_replay(@r, 'trailers are replayed');
    ok($t->stop, 'trailers: stopped');
}


# --- it is recorded whether the client takes it or not ----------------------

{
    # a client that asks and then does not read: what it leaves lying fills
    # the socket (sndbuf above), the rest is in nginx's temporary file
    my %slow = (key => 'slow', body => '', port => $n->port(1));
    my $uri = '/x?id=slow&size=1000000';
    my $c = $n->start(POST => $uri, %slow);

    # it must be the one that executes
    until_true { executions('slow') == 1 };

    my $again;
    until_true {
        $again = $n->post($uri, %slow);
        $again->{status} != 409;
    };

    ok($again->replayed, 'replayed before the first client has read it');
    ok($again->{body} eq pattern(1000000, 1), 'all of it');
    same_replay($c->response, $again, 'as the first client reads it later');
    is(executions('slow'), 1, 'a slow client: executed once');
}

# Looks on until the outcome is there.

sub carried {
    my ($name, $uri, $k, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    # nginx must have seen the client go before the upstream goes on
    my $r = $n->post($uri, key => $k, body => 'b', %o);
    is($r->{status}, 409, "$name: a repeat is refused");
    like($r->{body}, qr/in_progress/, "$name: as it is still pending");
    go($k);

    until_true {
        $r = $n->post($uri, key => $k, body => 'b', %o);
        $r->{body} !~ /in_progress/;
    };

    ok($r->replayed, "$name: carried through");
    is($r->{status}, 201, "$name: with its status");
    ok($r->{body} eq pattern(200000, 1), "$name: and all bytes");
    is(executions($k), 1, "$name: executed once");
}

for my $where ('1', 'body') {
    my $moment = $where eq 'body' ? 'in mid body' : 'before the header';

    for my $how (qw(close reset)) {
        my $k = "gone-$where-$how";
        my $uri = "/x?id=$k&gate=$where&size=200000&status=201";

        my $c = $n->start(POST => $uri, key => $k, body => 'b');
        held($k);
        $c->want(sub { $c->{buf} =~ /\r\n\r\n./s ? 1 : undef })
            if $where eq 'body';
        $c->$how;

        carried("$moment, client's $how", $uri, $k);
    }

    # HTTP/2: the stream ends with the connection
    my $k = "gone2-$where";
    my $uri = "/x?id=$k&gate=$where&size=200000&status=201";
    my $pid = fork // die "fork: $!";

    if ($pid == 0) {
        open STDOUT, '>', '/dev/null';
        exec 'curl', '-q', '-s', '--http2-prior-knowledge', '-d', 'b',
             '-H', "Idempotency-Key: $k", '-H', 'Content-Type:',
             '-H', 'Host: localhost',
             'http://127.0.0.1:' . $n->port(2) . $uri
            or POSIX::_exit(127);
    }

    held($k);
    kill KILL => $pid;
    waitpid $pid, 0;

    carried("$moment, HTTP/2 client gone", $uri, $k);
}


# --- $idempotency_status in all of this -------------------------------------

{
    my $log = $n->access_log;

    like($log, qr{^/x\?id=c1\S* 200 NEW$}m, 'an execution is NEW');
    like($log, qr{^/x\?id=c1\S* 200 REPLAYED$}m, 'a replay is REPLAYED');
    like($log, qr{^/small\?\S* 409 NOT_KEPT$}m, 'not kept is NOT_KEPT');
    like($log, qr{^/head\?id=geth\S* 409 CONFLICT$}m,
         'another method is a CONFLICT');
}

ok($n->stop, 'nginx stops in good order');

done_testing();
