#!/usr/bin/perl

# docs/guarantees.md, "What is in a replay": nginx's own filters act on a replay
# as they did on the original, for the client that asks now.

use lib 't/lib';
use Idempotency;

use IO::Uncompress::Gunzip qw(gunzip);

my $proxy = <<'EOC';
    proxy_pass http://$TEST_NGINX_BACKEND;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
EOC

# What a filter does is tried side by side: at /plain/NAME without and at
# /NAME with the module.

my %filters = (
    none    => '',
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

    # in each 256 bytes of a body of so many
    large   => "sub_filter 'z!' found; sub_filter_once off; sub_filter_types *;",
    sent    => 'sendfile on;',
);

my $pki = certificate();

my $n = nginx(workers => 2, http => <<"EOC" . <<'EOC', server => join '',
    ssl_certificate $pki/cert.pem;
    ssl_certificate_key $pki/key.pem;
EOC
    idempotency_keep any;
    charset_map koi8-r utf-8 { C1 D0B0; C2 D0B1; }
EOC
    'listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 ssl http2;'
    . ' listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 http2;'
    . ' location /page { return 200 included; }'
    . ' location /hints { idempotency zone=z;'
    . ' proxy_pass http://$TEST_NGINX_BACKEND; }',
    map { "location /plain/$_ { $filters{$_}\n$proxy }\n"
          . "location /$_ { $filters{$_}\nidempotency zone=z;\n$proxy }\n"
    } sort keys %filters);

my $key = 0;

sub post {
    my ($uri, $id, @headers) = @_;

    my $r = $n->post($uri, key => $id, body => 'b',
                     headers => [ 'Authorization: Basic bWU6cHc=', @headers ]);

    if (($r->header('Content-Encoding') // '') eq 'gzip') {
        gunzip(\delete $r->{body}, \my $body);
        $r->{body} = $body;
    }

    return $r;
}


# As the filter does it without the module, so must original and replay be, and
# so they have to have this in header lines, trailers or body.

sub filtered {
    my ($name, $where, $query, $has, @headers) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $id = 'k' . ++$key;
    my $uri = "/$where?id=$id&noexec=1&$query";
    my ($plain, $first, $again) = map { post($_, $id, @headers) }
        "/plain/$where?id=p$id&noexec=1&$query", ($uri) x 2;

    same_message($plain, $first, "$name: the original is as without us");
    same_replay($first, $again, "$name: the replay is as the original");
    is(join(' ', map { $_ eq 'body' ? $first->{body} : $_ eq 'trailers'
                       ? "@{$first->{trailers}}" : $first->header($_) // '-'
                     } sort keys %$has),
       join(' ', map { $has->{$_} } sort keys %$has), "$name: it acted");
    is(executions($id), 1, "$name: executed once");

    return ($uri, $id);
}

for my $te (qw(cl chunked close)) {
    filtered("$_->[0], $te", $_->[1], "te=$te&$_->[2]", $_->[3]) for
        ['add_header', 'headers', 'size=100',
         { 'X-Added' => 'here POST', 'Set-Cookie' => 'nginx=1' }],
        ['add_trailer', 'trailer', 'size=100', { trailers => 'X-Trailer: t 200' }],
        ['sub_filter', 'sub', 'say=hay&body=a%20needle%20is%20a%20needle',
         { body => 'a pin and hay is a pin and hay' }],
        ['ssi', 'ssi', 'body=%3C!--%23%20include%20virtual=%22/page%22%20--%3E!',
         { body => 'included!' }],
        ['charset', 'charset',
         'ct=text/html;%20charset=utf-8&body=%D0%B0%D0%B1', {}],
        ['charset from none', 'charset', 'body=%D0%B0%D0%B1',
         { body => "\xc1\xc2" }],
        ["charset's name", 'utf8', 'ct=text/html&body=abc',
         { 'Content-Type' => 'text/html; charset=utf-8' }],
        ['X-Accel-Charset', 'utf8',
         'ct=text/html&h=X-Accel-Charset:%20koi8-r&body=abc',
         { 'Content-Type' => 'text/html; charset=koi8-r' }],
        ['X-Accel-Charset off', 'utf8',
         'ct=text/html&h=X-Accel-Charset:%20off&body=abc',
         { 'Content-Type' => 'text/html' }];

    # gzip is negotiated for each request by itself
    for my $size (1, 5000, 70000, 300000) {
        my ($uri, $id) = filtered("gzip, $size bytes, $te", 'gzip',
            "size=$size&te=$te&h=ETag:%20%22strong%22",
            { 'Content-Encoding' => 'gzip', ETag => 'W/"strong"' },
            'Accept-Encoding: gzip');
        my $r = post($uri, $id);

        ok($r->replayed && !$r->has('Content-Encoding')
           && $r->{body} eq pattern($size, 1) && $r->header('ETag') eq '"strong"',
           '... as it is for one who takes no gzip') or diag $r->{head};
    }
}

# ... and what is sent from a file

for my $te (qw(cl chunked close)) {
    for my $where (qw(large sent ssi charset trailer)) {
        filtered("$where, 300000 bytes, $te", $where, "size=300000&te=$te&ct=text/html;%20charset=utf-8",
                 $where eq 'large' ? { body => pattern(300_000, 1) =~ s/z!/found/gr }
                 : $where eq 'trailer' ? { trailers => 'X-Trailer: t 200' } : {});
    }
}

for (['HTTP/1.1 over TLS', 1, '--http1.1', '-k'], ['HTTP/2 over TLS', 1, '--http2', '-k'],
     ['HTTP/2', 2, '--http2-prior-knowledge'])
{
    my ($name, $port, @with) = @$_;

    for my $where (qw(none sent)) {
        my $url = ($port == 1 ? 'https' : 'http') . '://127.0.0.1:' . $n->port($port) 
                  . "/$where?id=file" . ++$key . '&size=300000';
        my @r = map { $n->curl(@with, '-d', 'b', '-H', "Idempotency-Key: $name $where", $url) } 1, 2;

        ok($r[1]->replayed && $r[1]{body} eq pattern(300_000, 1), "$where, 300000 bytes, $name: all of it")
            or diag $r[1]{head};
    }
}

filtered('add_header on 404', 'headers', 'status=404&size=10',
         { 'X-Added' => 'here POST' });
filtered('add_header on 204', 'headers', 'status=204', {});
filtered('no sub_filter on an error', 'sub', 'status=500&body=needle', {});

# the length decides, and an unknown length is not the stored one
filtered("gzip, length $_->[0]", 'long', "size=500&te=$_->[0]",
         { 'Content-Encoding' => $_->[1] }, 'Accept-Encoding: gzip')
    for ['cl', '-'], ['chunked', 'gzip'];


# --- ranges and conditions --------------------------------------------------

for my $size (1000, 300_000) {
    my $uri = "/ranges?id=range$size&size=$size&noexec=1&h=ETag:%20%22e%22";
    my %want = ('Range: bytes=10-19' => 206, 'Range: bytes=-5' => 206,
                'Range: bytes=300000-' => 416, 'Range: bytes=0-0,998-999' => 200,
                'If-Range: "e"' => 200);

    my $first = post($uri, "range$size");
    is("$first->{status} " . length $first->{body}, "200 $size", "$size bytes: the whole first");

    for (sort keys %want) {
        # the pattern depends on the execution: count from the same number
        my $id = s/\W/-/gr;
        my $plain = post('/plain' . $uri =~ s/id=range/id=$id/r, undef, $_);
        my $again = post($uri, "range$size", $_);

        is($plain->{status}, $want{$_}, "$_: without us");
        same_message($plain, $again, "$_: on a replay as without us");
        ok($again->replayed, "$_: marked");
    }

    is(post("$uri&part", "part$size", 'Range: bytes=0-9')->{status}, 206,
       'a range of the original');
    my $whole = post("$uri&part", "part$size");
    is($whole->replayed . " $whole->{status} " . length $whole->{body},
       "1 200 $size", '... is not what was recorded');
    is(executions("range$size"), 2, 'ranges: executed once each');
}

# a proxied answer to POST is no subject to conditions, with us or without

my $with = 'h=ETag:%20%22e%22&h=Last-Modified:%20Mon,%2028%20Sep%201970%20'
           . '06:00:00%20GMT';

for ('If-None-Match: "e"', 'If-None-Match: *', 'If-Match: "other"',
     'If-Modified-Since: Mon, 28 Sep 1970 06:00:00 GMT',
     'If-Unmodified-Since: Mon, 28 Sep 1960 06:00:00 GMT')
{
    filtered($_, 'headers', "size=10&$with", { 'X-Added' => 'here POST' }, $_);

    same_replay(post("/none?id=$key&$with", "c$key"),
                post("/none?id=$key&$with", "c$key", $_), "a replay with $_");
}


# --- protocol versions, connections -----------------------------------------

for my $te (qw(cl chunked close)) {
    for my $old_first (0, 1) {
        my $id = 'v' . ++$key;
        my %r = map {
            $_ => $n->post("/none?id=$id&size=3000&te=$te", key => $id,
                           body => '', version => $_)
        } $old_first ? ('1.0', '1.1') : ('1.1', '1.0');

        is_deeply([ map { my $r = $r{$_};
                          ($r->{body} eq pattern(3000, 1), $r->header('Connection'),
                           $r->replayed) } '1.0', '1.1' ],
                  [ 1, 'close', !$old_first, 1, 'keep-alive', !!$old_first ],
                  "HTTP/1.0 and 1.1, $te, $old_first: the same");
        is(($r{'1.0'}{chunked} // 0) . ($r{'1.0'}->header('Content-Length') // ''),
           $te eq 'cl' ? '03000' : '0', '... HTTP/1.0: the length as it was known');
        is(executions($id), 1, '... executed once');
    }
}

{
    # replays and executions in turn on one connection
    my $c = $n->connect;
    my @r = map {
        $c->send(message('POST', "/none?id=$_&size=100&te=chunked", key => $_,
                         body => 'b'));
        $c->response('POST');
    } qw(c1 c1 c2 c1 c2 c3);

    same_replay(@r[@$_], "one connection: replay $_->[1]")
        for [0, 1], [0, 3], [2, 4];
    is($r[5]{status}, 200, 'one connection: and on');
    is(executions($_), 1, "one connection: $_ executed once") for qw(c1 c2 c3);
}


# --- interim responses and trailers -----------------------------------------

{
    my @r = map { post('/none?id=continue', 'continue', 'Expect: 100-continue') }
                1, 2;

    is(scalar @{$r[0]{interim}}, 1, '100 (Continue) passes');
    same_replay(@r, '100 (Continue) is not the outcome');

    # An upstream's: nginx knows them since 1.29. Before, it took them for
    # final, and what followed for their body: nobody can tell what happened.

    @r = map { $n->post('/hints?id=hints&early=103%20Link:%20%3C/a%3E',
                        key => 'hints', body => 'b') } 1, 2;

    is($r[0]{body}, "exec=1 id=hints\n", '103 (Early Hints): passes');
    is($r[1]->replayed ? 'replayed' : $r[1]{status},
       has_directive('early_hints 1;') ? 'replayed' : 409,
       '103 (Early Hints) is not the outcome');
    is(executions('hints'), 1, '103 (Early Hints): executed once');
}

# A filter may put a response of its own in the place of one that it does not let
# pass. It has an end, and of the other one nothing is behind it.

{
    my $f = nginx(workers => 2, files => { map { ("html/$_" => 'x' x $_) } 7, 300_000 },
                  server => <<'EOC');
        idempotency zone=z;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
        location ~ ^/[73] { internal; root html; }
        location /found/ { rewrite ^/found(/.*) $1 break; error_page 412 @found; root html; }
        location @found { return 200 "another\n"; }
EOC

    for my $to (map { ("/$_", "/found/$_") } 7, 300_000) {
        my $uri = "/x?id=$to&h=X-Accel-Redirect:%20$to";

        for my $again (0, 1) {
            my $c = $f->start('POST', $uri, key => $to, body => 'b',
                              headers => ['If-Match: "other"']);
            my $r = $c->response;
            my $name = "$to is not that one" . ($again ? ', again' : '');

            is($r->{status} . ($r->replayed ? ' replayed' : ''), '412' . ($again ? ' replayed' : ''), $name);
            like($r->{body}, $to =~ /found/ ? qr/^another\n\z/ : qr/412 Precondition.*<\/html>\r\n\z/s,
                 '... is told');
            $c->send("GET /page HTTP/1.0\r\n\r\n");
            $c->closed;
            unlike($c->{buf}, qr/x{7}/, '... and nothing of it');
        }

        is(executions($to), 1, '... of one execution');
    }
}

SKIP: {
    skip 'nginx passes no trailers before 1.27.2', 2
        unless has_directive('proxy_pass_trailers on;');

    my $t = nginx(server => "idempotency zone=z; proxy_pass_trailers on;
                             location / { proxy_set_header TE trailers; $proxy }");
    my @r = map { $t->post('/x?te=chunked&size=100&trailer=X-A:%20a&trailer='
                           . 'X-B:%20b&trailer=X-A:%20c', key => 'trailer') } 1, 2;

    is("@{$r[0]{trailers}}", 'X-A: a X-B: b X-A: c', 'trailers pass');
    same_replay(@r, 'trailers are replayed');
}

done_testing();
