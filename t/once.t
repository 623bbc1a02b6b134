#!/usr/bin/perl

# What has a key is sent to an upstream once: nginx goes on to the next one
# only if not a byte of it was sent, whatever the method.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use File::Temp ();
use IO::Socket::INET;

my $dead = backend('dead');
my @methods = qw(POST PATCH PUT DELETE);


# A resolver that knows two addresses for any name, and both are the same.

my $dns = IO::Socket::INET->new(Proto => 'udp', LocalAddr => '127.0.0.1')
    or die $!;
my $test = $$;
my $pid = fork // die $!;

if ($pid == 0) {
    $SIG{$_} = 'DEFAULT' for qw(TERM INT HUP);

    while (defined $dns->recv(my $ask, 512)) {
        my $question = substr $ask, 12;
        my $type = unpack 'n', substr $question, index($question, "\0") + 1;
        my $n = $type == 1 ? 2 : 0;

        $question = substr $question, 0, index($question, "\0") + 5;
        $dns->send(pack('a2 n5', $ask, 0x8180, 1, $n, 0, 0) . $question
                   . pack('nnnNnC4', 0xc00c, 1, 1, 60, 4, 127, 0, 0, 1) x $n);
    }

    POSIX::_exit(0);
}

END {
    local $?;
    if ($$ == $test) {
        kill KILL => $pid;
        waitpid $pid, 0;
    }
}


my $pki = File::Temp->newdir;
system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
       . " -keyout $pki/key.pem -out $pki/cert.pem 2>/dev/null") == 0
    or die 'no certificate';

my %here = (DNS => $dns->sockport, BACKEND => backend());

my $n = nginx(http => <<EOC, server => <<'EOC2' =~ s/:(DNS|BACKEND)/:$here{$1}/gr);
    idempotency zone=z;
    idempotency_methods @methods;
    idempotency_keep any;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_next_upstream error timeout invalid_header http_500 http_503
                        http_404 non_idempotent;
    fastcgi_next_upstream error timeout invalid_header non_idempotent;

    upstream kept { server \$TEST_NGINX_BACKEND max_fails=0; keepalive 8; }
    upstream both { server \$TEST_NGINX_BACKEND max_fails=0;
                    server \$TEST_NGINX_BACKEND max_fails=0;
                    server \$TEST_NGINX_BACKEND max_fails=0; }
    upstream least { least_conn;
                     server \$TEST_NGINX_BACKEND max_fails=0;
                     server \$TEST_NGINX_BACKEND max_fails=0 weight=2;
                     keepalive 8; }
    upstream hashed { hash \$request_uri consistent;
                      server \$TEST_NGINX_BACKEND max_fails=0;
                      server \$TEST_NGINX_BACKEND max_fails=0 weight=2; }
    upstream other { server 127.0.0.1:$dead max_fails=0 weight=1000;
                     server \$TEST_NGINX_BACKEND max_fails=0 backup; }
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
    upstream fast { server \$TEST_NGINX_FASTCGI max_fails=0;
                    server \$TEST_NGINX_FASTCGI max_fails=0; }
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
    location /known {
        set $to any.example;
        proxy_pass http://$to:BACKEND$request_uri;
    }
    location /short { proxy_read_timeout 300ms; proxy_pass http://both; }
    location /fast {
        fastcgi_pass fast;
        fastcgi_param REQUEST_METHOD $request_method;
        fastcgi_param REQUEST_URI $request_uri;
        fastcgi_param QUERY_STRING $query_string;
        fastcgi_param CONTENT_LENGTH $content_length;
    }
    location /redirected {
        idempotency zone=z;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /fallback {
        error_page 502 = @fallback;
        proxy_pass http://$TEST_NGINX_DEAD;
    }
    location @fallback { idempotency off; proxy_pass http://both; }
EOC2

sub ask {
    my ($method, $uri, $key) = @_;

    return $n->request($method, $uri, key => $key, body => 'b');
}


# connections to be kept, so that there is one to be found dead

sub warm {
    my @c = map { $n->start(GET => "/kept?id=warm&delay=100") } 1 .. 4;
    $_->response for @c;
    $_->close for @c;
}

my %fault = (
    'reset'       => ['rst=1', 502],
    'closed'      => ['close=1', 502],
    'malformed'   => ['raw=HTTP/1.1%20200%20OK%0d%0aA%00:%20b%0d%0a%0d%0a', 502],
    '500'         => ['status=500&body=mine', 500],
    '503'         => ['status=503&body=mine', 503],
    '404'         => ['status=404&body=mine', 404],
);

for my $method (@methods) {
    for my $at (qw(/ /kept /tls /least /hashed /named /resolved /known /redirected
                   /fallback))
    {
        for my $fault (sort keys %fault) {
            my ($query, $status) = @{$fault{$fault}};
            (my $id = "$method-$at-$fault") =~ s/\W+/-/g;
            my $uri = "$at?id=$id&$query";

            warm() if $at eq '/kept' && $fault =~ /reset|closed/;

            my $r = ask($method, $uri, $id);

            is($r->{status}, $status, "$method at $at, $fault: its answer");
            is(executions($id), 1, "$method at $at, $fault: executed once");
            is($r->{body}, 'mine', "$method at $at, $fault: the upstream's own")
                if $query =~ /mine/;
        }
    }

    my $id = "$method-time";
    is(ask($method, "/short?id=$id&gate=1", $id)->{status}, 504,
       "$method, time-out: its answer");
    is(executions($id), 1, "$method, time-out: executed once");
    go($id);

    $id = "$method-fast";
    is(ask($method, "/fast?id=$id&close=1", $id)->{status}, 502,
       "$method, FastCGI: its answer");
    is(executions($id), 1, "$method, FastCGI: executed once");

    # not a byte was sent to the first
    $id = "$method-other";
    is(ask($method, "/other?id=$id", $id)->{status}, 200,
       "$method: the next one is asked if the first is not there");
    is(executions($id), 1, "$method: and it executes");
}

# Nobody else is touched: nginx goes on as it was told to.

for my $method ('GET', 'PUT') {
    my $id = "free-$method";
    my $r = $n->request($method, "/?id=$id&close=1", body => 'b');
    is($r->{status}, 502, "$method without a key: all have failed");
    is(executions($id), 3, "$method without a key: all were asked");
}

ok($n->stop, 'nginx stops in good order');

done_testing();
