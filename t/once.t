#!/usr/bin/perl

# What has a key is sent to an upstream once: nginx goes on to the next one
# only if not a byte of it was sent, whatever the method.

use lib 't/lib';
use Idempotency;
use IO::Socket::INET;

my @methods = qw(POST PATCH PUT DELETE);


# A resolver that knows two addresses for any name, and both are the same.

my $dns = IO::Socket::INET->new(Proto => 'udp', LocalAddr => '127.0.0.1')
    or die $!;

child(sub {
    while (defined $dns->recv(my $ask, 512)) {
        my $question = substr $ask, 12;
        my $type = unpack 'n', substr $question, index($question, "\0") + 1;
        my $n = $type == 1 ? 2 : 0;

        $question = substr $question, 0, index($question, "\0") + 5;
        $dns->send(pack('a2 n5', $ask, 0x8180, 1, $n, 0, 0) . $question
                   . pack('nnnNnC4', 0xc00c, 1, 1, 60, 4, 127, 0, 0, 1) x $n);
    }
});


my $pki = certificate();
my %here = (DNS => $dns->sockport, BACKEND => backend());
my $server = "server 127.0.0.1:$here{BACKEND} max_fails=0";

my $n = nginx(http => <<EOC, server => <<'EOC2' =~ s/:(DNS|BACKEND)/:$here{$1}/gr);
    idempotency zone=z;
    idempotency_methods @methods;
    idempotency_keep any;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_next_upstream error timeout invalid_header http_500 http_503
                        http_404 non_idempotent;
    fastcgi_next_upstream error timeout invalid_header non_idempotent;

    upstream kept { $server; keepalive 8; }
    upstream both { $server; $server; $server; }
    upstream least { least_conn; $server; $server weight=2; keepalive 8; }
    upstream hashed { hash \$request_uri consistent; $server;
                      $server weight=2; }
    upstream other { server \$TEST_NGINX_DEAD max_fails=0 weight=1000;
                     $server backup; }
    upstream fast { server \$TEST_NGINX_FASTCGI max_fails=0;
                    server \$TEST_NGINX_FASTCGI max_fails=0; }
    upstream tls { server 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 max_fails=0;
                   server 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 max_fails=0;
                   keepalive 8; }
    server {
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 ssl;
        ssl_certificate $pki/cert.pem;
        ssl_certificate_key $pki/key.pem;
        idempotency off;
        proxy_next_upstream off;
        error_page 502 = \@drop;
        location / { proxy_pass http://\$TEST_NGINX_BACKEND; }
        location \@drop { return 444; }
    }
EOC
    location / { proxy_pass http://both; }
    location /kept { proxy_pass http://kept; }
    location /least { proxy_pass http://least; }
    location /hashed { proxy_pass http://hashed; }
    location /other { proxy_pass http://other; }
    location /tls { proxy_pass https://tls; }
    location /named { set $to both; proxy_pass http://$to; }
    # a name for each, and one for all that is known from the second time on
    resolver 127.0.0.1:DNS ipv6=off;
    location /resolved { proxy_pass http://$arg_id.example:BACKEND$request_uri; }
    location /known { set $to any.example;
                      proxy_pass http://$to:BACKEND$request_uri; }
    location /short { proxy_read_timeout 300ms; proxy_pass http://both; }
    location /fast {
        fastcgi_pass fast;
        fastcgi_param REQUEST_METHOD $request_method;
        fastcgi_param REQUEST_URI $request_uri;
        fastcgi_param QUERY_STRING $query_string;
        fastcgi_param CONTENT_LENGTH $content_length;
    }
    location /redirected { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /fallback {
        error_page 502 = @fallback;
        proxy_pass http://$TEST_NGINX_DEAD;
    }
    location @fallback { idempotency off; proxy_pass http://both; }
EOC2


# connections to be kept, so that there is one to be found dead

sub warm {
    my @c = map { $n->start(GET => "/kept?id=warm&delay=100") } 1 .. 4;
    $_->response for @c;
    $_->close for @c;
}

# Asked once with a key, the client has this status, and all of the upstream's
# own answer, if there was one.

sub once {
    my ($method, $at, $fault, $query, $status) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    (my $id = "$method-$at-$fault") =~ s/\W+/-/g;
    my $r = $n->request($method, "$at?id=$id&$query", key => $id, body => 'b');
    my $own = $query =~ /mine/ ? ' mine' : '';

    is("$r->{status}" . ($own && " $r->{body}") . ', executed '
       . executions($id), "$status$own, executed 1", "$method at $at, $fault");
    go($id) if $query =~ /gate/;
}

for my $method (@methods) {
    for my $at (qw(/ /kept /tls /least /hashed /named /resolved /known /redirected
                   /fallback))
    {
        for (['reset', 'rst=1', 502], ['closed', 'close=1', 502],
             ['malformed', 'raw=HTTP/1.1%20200%20OK%0d%0aA%00:%20b%0d%0a%0d%0a',
              502],
             map { [ $_, "status=$_&body=mine", $_ ] } 404, 500, 503)
        {
            warm() if $at eq '/kept' && $_->[0] =~ /reset|closed/;
            once($method, $at, @$_);
        }
    }

    once($method, '/short', 'time-out', 'gate=1', 504);
    once($method, '/fast', 'FastCGI', 'close=1', 502);
    once($method, '/other', 'not a byte was sent to the first', '', 200);
}

# Nobody else is touched: nginx goes on as it was told to.

for my $method ('GET', 'PUT') {
    my $r = $n->request($method, "/?id=free-$method&close=1", body => 'b');
    is("$r->{status}, executed " . executions("free-$method"),
       '502, executed 3', "$method without a key: all were asked");
}

ok($n->stop, 'nginx stops in good order');

done_testing();
