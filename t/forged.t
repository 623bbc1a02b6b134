#!/usr/bin/perl

# docs/guarantees.md: a record that somebody has written into a state
# file. Whatever it says, it is sent as a response of its own bytes, or it is
# refused as "not kept" and the log says why; nginx's filters never see what
# contradicts itself. FORGED=N asks for so many random ones.

use lib 't/lib';
use Idempotency;
use Restart;
use Rows;


if (my $why = no_state()) {
    plan(skip_all => "no file: $why");
}


# --- a response as a record has it -------------------------------------------------

sub number {
    my ($n) = @_;

    my $bytes = '';

    for (1 .. 10) {
        my $low = $n & 0x7f;
        $n >>= 7;
        $bytes .= chr($low | ($n ? 0x80 : 0));
        last if !$n;
    }

    return $bytes;
}

sub string { return number(length $_[0]) . $_[0] }

sub lines { return join('', map { chr($_->[0]) . string($_->[1]) . string($_->[2]) } @_) . "\0" }

my $ten = '0123456789';

sub response {
    my (%o) = (flags => 1, status => 200, line => '200 OK', type => 'text/html',
               charset => '', override => '', modified => 0, suppressed => 0,
               headers => [], trailers => [], body => $ten, @_);

    $o{type_len} //= length $o{type};
    $o{length} //= 1 + length $o{body};

    return chr($o{version} // 1) . chr($o{flags}) . ($o{origin} // '')
           . number($o{status}) . string($o{line}) . string($o{type})
           . number($o{type_len}) . string($o{charset}) . string($o{override})
           . number($o{length}) . number($o{modified}) . number($o{suppressed})
           . lines(@{$o{headers}}) . lines(@{$o{trailers}}) . $o{body};
}

my %good = (
    'one of ten bytes' => {},
    'without its length' => { length => 0 },
    'with lines and trailers' => { flags => 9, headers => [[13, 'ETag', '"e"'], [1, 'A', "b\tc"]],
                                   trailers => [[1, 'X-Sum', '1']] },
);

my %lies = (
    'a length of 3,000,000' => { length => 3_000_001 },
    'a length of nine' => { length => 10 },
    'a length of 2 ** 63 - 1' => { length => ~0 >> 1 },
    'a length below zero' => { length => ~0 - 5 },
    'a line with another length' => { length => 0, headers => [[4, 'Content-Length', 3_000_000]] },
    'a status of 99' => { status => 99, line => '' },
    'a status of 1000' => { status => 1000, line => '' },
    'a status of 101' => { status => 101, line => '' },
    'another one than its row' => { status => 201, line => '' },
    'a line of another status' => { line => '404 Not Found' },
    'two lines for one' => { line => "200 OK\r\nX-Forged: 1" },
    'a type longer than itself' => { type_len => 4000 },
    'a type of two lines' => { type => "text/html\r\nX-Forged: 1" },
    'a charset of two lines' => { charset => "a\nX-Forged: 1" },
    'a name of two lines' => { headers => [[1, "A: b\r\nX-Forged", 1]] },
    'a value of two lines' => { headers => [[1, 'A', "b\r\nX-Forged: 1"]] },
    'a value with a zero' => { headers => [[1, 'A', "b\0"]] },
    'a nameless line' => { headers => [[1, '', 'b']] },
    'a trailer of two lines' => { trailers => [[1, 'A', "b\nX-Forged: 1"]] },
    'a trailer in a slot' => { trailers => [[6, 'Location', '/']] },
    'a slot that there is none of' => { headers => [[16, 'Link', '</>']] },
    'a line in the slot of another' => { headers => [[8, 'X-Modified', 'x']] },
    'what ends a connection' => { headers => [[1, 'Transfer-Encoding', 'chunked']] },
    'suppressed slots that there are none of' => { suppressed => 1 << 40 },
    'unknown flags' => { flags => 0x41 },
    'a time of the year 300,000' => { modified => 9_403_894_440_000 },
    'a time before all times' => { modified => 1 << 63 },
    'another version' => { version => 2 },
    'a location whose name has no end' => { flags => 0x21, origin => 'o' x 17 . number(1 << 40) },
    'a response that is cut off' => { cut => 12 },
);


# --- nginx ------------------------------------------------------------------------

# Locations with all filters that look at headers or bodies.

my $server = <<'EOC';
    idempotency zone=z;
    add_header X-Status $idempotency_status always;

    location /plain { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /ranges { proxy_force_ranges on; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /ssi { ssi on; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /sub {
        sub_filter 345 five;
        sub_filter_once off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /gzip { gzip on; gzip_min_length 1; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /charset {
        charset utf-8;
        source_charset koi8-r;
        override_charset on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /all {
        ssi on;
        sub_filter 345 five;
        gzip on;
        gzip_min_length 1;
        etag on;
        expires 1h;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my @where = qw(/plain /ranges /ssi /sub /gzip /charset /all);
my @asks = ([], ['Range: bytes=0-1,20-2000000'], ['Range: bytes=2-'], ['Range: bytes=-5'],
            ['Accept-Encoding: gzip'], ['If-None-Match: "e"', 'If-Range: "e"', 'Range: bytes=1-2'],
            ['If-Modified-Since: Thu, 19 Nov 2026 10:00:00 GMT']);

my $n = outliving(zone => with_state('batched'), server => $server,
                  http => 'charset_map koi8-r utf-8 { 80 E282AC; }',
                  allow => qr/\[alert\].*a recorded response is none that this module has written/);
my $path = $n->root . '/z.db';
my %told;

# In each row as it was made another response is put.

my @jobs;

for my $where (@where) {
    push @jobs, map { { where => $where, name => $_, good => 1, response => response(%{$good{$_}}) } }
                sort keys %good;
    push @jobs, map { { where => $where, name => $_,
                        response => substr(response(%{$lies{$_}}), 0, $lies{$_}{cut} // 1 << 20) } }
                sort keys %lies;
}

my $seed = $ENV{FORGED_SEED} // 1;
my $random = $ENV{FORGED} // 100;

srand($seed);

push @jobs, map { { where => $where[rand @where], name => "random $_", random => 1,
                    response => random_response() } } 1 .. $random;

for my $i (0 .. $#jobs) {
    my $r = $n->post("$jobs[$i]{where}?id=forged-$i&noexec=1", key => "forged-$i", body => 'b',
                     headers => ['Authorization: Bearer first']);

    is($r->{status}, 200, 'a first execution') if $r->{status} != 200;
}

$n->down('QUIT');

my %token = map { /^(.*)\|(.*)$/ ? ($1 => $2) : () }
            sqlite($path, 'SELECT rowid, hex(token) FROM records ORDER BY rowid');
my @token = map { $token{$_} } sort { $a <=> $b } keys %token;

is(scalar @token, scalar @jobs, 'all are in the file, in their order');

for my $i (0 .. $#jobs) {
    sqlite($path, sprintf "UPDATE records SET response = x'%s00' WHERE token = x'%s'",
                          unpack('H*', $jobs[$i]{response}), $token[$i]);
}

resum($path, $_) for @token;

$n->up;

my $pids = join ' ', sort $n->workers;

for my $i (0 .. $#jobs) {
    my $job = $jobs[$i];
    my $canary = "canary-$i-" . 'x' x 200;

    for my $ask (@asks) {
        my $from = length $n->log;
        my $r = $n->post("$job->{where}?id=forged-$i&noexec=1", key => "forged-$i", body => 'b',
                         headers => ['Authorization: Bearer first', "X-Canary: $canary", @$ask]);
        my $what = "$job->{name} at $job->{where}" . (@$ask ? ", $ask->[-1]" : '');

        if ($r->{raw} =~ /canary|X-Forged|Bearer/) {
            fail("$what: nothing of others") or diag($r->{raw});
        }

        if ($job->{random}) {
            ok(!$r->{broken} && $r->{status} >= 200 && length $r->{body} < 4000, $what)
                or diag("FORGED_SEED=$seed\n$r->{raw}");
            next;
        }

        if ($job->{good}) {
            ok($r->replayed, "$what: is replayed") or diag($r->{raw});
            next;
        }

        ok(told($r) eq '409 NOT_KEPT' && $r->{body} !~ /012|789/, "$what: is not kept")
            or diag($r->{raw} =~ s/(.{2000}).*/$1 .../sr);
        like(substr($n->log, $from), qr/a recorded response is none that this module has written/,
             '... and the log says so') if !@$ask;
    }
}

is(join(' ', sort $n->workers), $pids, 'no worker has died');
$n->stop;

done_testing();


# --- random ones ------------------------------------------------------------------

# Each part is as it should be, or a lie about itself or another part.

sub random_response {
    my $lie = sub { rand() < ($_[0] // 0.15) };
    my @names = ('Server', 'Date', 'Content-Length', 'Content-Encoding', 'Location', 'Refresh',
                 'Last-Modified', 'Content-Range', 'Accept-Ranges', 'WWW-Authenticate', 'Expires',
                 'ETag', 'Cache-Control', 'Link', 'Set-Cookie', 'X-A', 'Vary', 'Trailer');
    my $odd = sub { ('', "\r\n", "\0", '/', '//', 'gzip', '"', 'W/"', 'x' x 300, 'bytes 0-1/2',
                     'chunked', '0', '-1', '10', '99999999999999999999')[rand 15] };
    my $huge = sub { (0, 1, 2, 11, 12, 100, 3_000_001, 1 << 31, 1 << 32, ~0 >> 1, ~0)[rand 11] };
    my $some = sub {
        map {
            my $k = int rand @names;
            [ $lie->() ? int rand 256 : $k < 14 ? $k + 2 : 1,
              $lie->(0.05) ? $odd->() : $names[$k],
              $lie->(0.5) ? $odd->() : $names[$k] eq 'Content-Length' ? 10 : '"v"' ]
        } 1 .. rand $_[0]
    };

    my $body = ('', $ten, '<!--#include virtual="/x" -->', "\x1f\x8b\x08", '345' x 100)[rand 5];
    my $status = $lie->() ? int rand 700 : (200, 200, 201, 204, 206, 304, 500)[rand 7];
    my $bytes = response(
        flags => $lie->(0.5) ? int rand 256 : 1,
        status => $status,
        line => $lie->() ? $odd->() : $lie->(0.5) ? "$status Good" : '',
        type => $lie->() ? $odd->() : 'text/html',
        type_len => $lie->() ? $huge->() : undef,
        charset => $lie->() ? $odd->() : $lie->(0.3) ? 'koi8-r' : '',
        length => $lie->(0.3) ? $huge->() : 1 + length $body,
        modified => $lie->(0.3) ? $huge->() : 0,
        suppressed => $lie->(0.3) ? int rand 1 << 14 : 0,
        headers => [ $some->(6) ],
        trailers => $lie->() ? [ $some->(3) ] : [],
        body => $body);

    substr $bytes, rand length $bytes, 1, chr rand 256 if $lie->();

    return $lie->(0.1) ? substr $bytes, 0, rand length $bytes : $bytes;
}
