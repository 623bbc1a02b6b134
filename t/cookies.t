# SPEC, idempotency_identity and idempotency_ignore_cookies: which cookies tell
# who asks. An honest retry with cookies in another order, in other lines, or
# with one that ticks, is the same request; another session is not.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use Time::HiRes qw(time);


my $n = nginx(http => <<'EOC', server => <<'EOC');
    idempotency zone=z;
    large_client_header_buffers 8 256k;

    add_header X-Status $idempotency_status always;
    add_header X-Reason $idempotency_reason always;

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name listed;

        idempotency_ignore_cookies srv tick_*;
        idempotency_ignore_cookies *_end a*z;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /own {
            idempotency_ignore_cookies own;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /off {
            idempotency_ignore_cookies off;
            proxy_pass http://$TEST_NGINX_BACKEND;

            location /off/below {
                proxy_pass http://$TEST_NGINX_BACKEND;
            }
        }

        location /all {
            idempotency_ignore_cookies *;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /content {
        idempotency_missing_key content;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $id = 'cookie0';

sub told {
    my ($r) = @_;

    my $reason = $r->header('X-Reason');

    return "$r->{status} " . ($r->header('X-Status') // '-')
           . (length($reason // '') ? " $reason" : '');
}

sub lines { return [ map { "Cookie: $_" } ref $_[0] ? @{$_[0]} : $_[0] ] }

# The same request with these cookies, one after the other: a string is a line,
# a list several lines.

sub asked {
    my ($path, @cookies) = @_;

    my $host = $path =~ s{^(\w+):}{} ? $1 : 'localhost';

    $id++;

    return join ', ', map {
        told($n->post("$path?id=$id", key => $id, body => 'b', host => $host,
                      headers => lines($_)))
    } @cookies;
}

sub same {
    my ($name, @cookies) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(asked('/', @cookies), join(', ', '200 NEW', ('200 REPLAYED') x $#cookies),
       "the same: $name");
}

sub other {
    my ($name, @cookies) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(asked('/', @cookies, $cookies[0]),
       join(', ', '200 NEW', ('409 CONFLICT identity') x $#cookies,
                  '200 REPLAYED'),
       "another: $name");
}


# --- what does not count -----------------------------------------------------

same('another order', 'session=a; cart=1; lang=de', 'lang=de; cart=1; session=a',
     'cart=1; session=a; lang=de');
same('in several lines', 'session=a; cart=1', [ 'session=a', 'cart=1' ],
     [ 'cart=1', 'session=a' ], [ 'cart=1', '', 'session=a;' ]);
same('white space', 'session=a; cart=1', 'session=a;cart=1',
     "  session=a ;\t cart=1  ", 'session = a; cart= 1');
same('empty pairs', 'session=a; cart=1', ';; session=a; ; cart=1;', '; cart=1; session=a');
same('no value', 'session=a; seen', 'seen=; session=a');
same('many', join('; ', map { "c$_=$_" } 1 .. 200),
     join('; ', map { "c$_=$_" } reverse 1 .. 200));

# --- what counts -------------------------------------------------------------

other('a value', 'session=a; cart=1', 'session=b; cart=1', 'session=a; cart=2');
other('a name', 'session=a', 'Session=a', 'session2=a');
other('one more', 'session=a', 'session=a; cart=1');
other('one less', 'session=a; cart=1', 'session=a', 'cart=1');
other('values that change places', 'a=1; b=2', 'a=2; b=1');
other('cookies that run together', 'a=1; b=2', 'a=1b=2', 'a="1; b=2"', 'a=1; b=; 2=');
other('the order of equal names', 'a=1; a=2', 'a=2; a=1', 'a=1', 'a=2');
other('quotes', 'a=1', 'a="1"');
other('an equals sign in the value', 'a=b=c', 'a=b', 'a=bc');
other('case of the value', 'a=b', 'a=B');

is(asked('/', 'a=1', '', 'a=1'),
   '200 NEW, 409 CONFLICT identity, 200 REPLAYED', 'another: none any more');


# --- those that change by themselves -----------------------------------------

my @ticking = qw(_ga_ABC123 _gat _gat_UA-1 _clsk _hjSession_1 _hjSessionUser_1
                 _uetsid _uetvid _dd_s __hssc __hstc _pk_ses _pk_ses.1.ab
                 sbjs_current sbjs_session mp_0a1b_mixpanel AMP_0a1b AMP_MKTG_x
                 OptanonConsent AWSALB AWSALBCORS AWSALBTG __cf_bm bm_sz bm_sv
                 ak_bmsc _abck datadome incap_ses_1_2 XSRF-TOKEN);

for my $name (@ticking) {
    same("$name ticks", "session=a; $name=1", "$name=2; session=a",
         'session=a');
}

for my $name (qw(_ga _fbp csrftoken _gid ga_x _ga2 x_ga_1 _GA_1 _clsk2 x_clsk
                 mp_mixpanel mp_x_mixpanel2 AWSAL XSRF-TOKEN2 xsrf-token
                 OptanonAlertBoxClosed bm_s datadome2 incap_ses sbjs amp_1))
{
    other("$name stays", "session=a; $name=1", "session=a; $name=2");
}

# Nothing but ticking ones: nobody that is known.
is(asked('/', '_ga_1=1; AWSALB=x', '_ga_1=2', '', 'session=a'),
   '200 NEW, 200 REPLAYED, 200 REPLAYED, 200 REPLAYED',
   'only those that tick: no identity');

# The measured case: a browser's retry.
same("a browser's retry",
     'session=a; _ga=GA1.1.1.2; _ga_XYZ=GS1.1.17.1.0; AWSALB=abc; XSRF-TOKEN=1',
     'XSRF-TOKEN=2; _ga_XYZ=GS1.1.17.2.9; AWSALB=def; session=a; _ga=GA1.1.1.2');

# ... and by its content: one order.
{
    $id = 'content';

    my @r = map {
        told($n->post("/content?id=$id", body => 'order=1',
                      type => 'application/x-www-form-urlencoded',
                      headers => lines($_)))
    } 'session=a; _ga_X=1; AWSALB=1; XSRF-TOKEN=1',
      'XSRF-TOKEN=2; AWSALB=2; session=a; _ga_X=2',
      'session=b; _ga_X=2';

    is(join(', ', @r), '200 NEW, 200 REPLAYED, 200 NEW',
       'in content mode: one order, and the one of another session');
    is(executions($id), 2, '... as often executed');
}


# --- idempotency_ignore_cookies ----------------------------------------------

sub ignored {
    my ($path, $name) = @_;

    my $got = asked($path, "session=a; $name=1", "session=a; $name=2");

    return $got eq '200 NEW, 200 REPLAYED' ? 1
           : $got eq '200 NEW, 409 CONFLICT identity' ? 0 : $got;
}

for my $case ([ 'listed:/', { srv => 1, tick_ => 1, tick_x => 1, tick => 0,
                              Srv => 0, srv2 => 0, asrv => 0, _end => 1,
                              x_end => 1, _end2 => 0, az => 1, abcz => 1,
                              a => 0, azb => 0, z => 0, own => 0,
                              _ga_1 => 1, 'XSRF-TOKEN' => 1 } ],
              [ 'listed:/own', { own => 1, srv => 0, tick_x => 0, az => 0,
                                 _ga_1 => 1, AWSALB => 1 } ],
              [ 'listed:/off', { srv => 0, own => 0, _ga_1 => 0, AWSALB => 0,
                                 'XSRF-TOKEN' => 0 } ],
              [ 'listed:/off/below', { srv => 0, _ga_1 => 0 } ],
              [ '/', { srv => 0, tick_x => 0, _ga_1 => 1 } ])
{
    my ($path, $names) = @$case;

    is(ignored($path, $_), $names->{$_},
       "$path: $_ is " . ($names->{$_} ? 'ignored' : 'not ignored'))
        for sort keys %$names;
}

is(asked('listed:/all', 'a=1', 'b=2', '=3', ''),
   '200 NEW, 200 REPLAYED, 200 REPLAYED, 200 REPLAYED', 'all of them');


# --- HTTP/2 may send each cookie in a line of its own -------------------------

sub h2 {
    my ($cookies, @args) = @_;

    return told($n->curl(@args, '-d', 'b', '-H', "Idempotency-Key: $id",
                         '-H', 'Content-Type: text/plain',
                         map({ ('-H', "Cookie: $_") } @$cookies),
                         'http://127.0.0.1:' . $n->port(1) . "/?id=$id"));
}

{
    $id = 'h2';
    my $prior = '--http2-prior-knowledge';

    is(join(', ', h2([ 'session=a; cart=1; _ga_X=1' ], $prior),
                  h2([ 'cart=1', '_ga_X=2', 'session=a' ], $prior),
                  h2([ 'session=b', 'cart=1' ], $prior)),
       '200 NEW, 200 REPLAYED, 409 CONFLICT identity', 'HTTP/2');
}


# --- very many ---------------------------------------------------------------

# Beyond 256 their order counts, but nothing else changes, and the work is as
# much as the header is long.
{
    my @many = map { "c$_=$_" } 1 .. 400;

    is(asked('/', map { join '; ', @$_ } [ @many[0 .. 255] ],
             [ reverse @many[0 .. 255] ]),
       '200 NEW, 200 REPLAYED', '256 cookies, in any order');
    is(asked('/', map { join '; ', @$_ } [ @many[0 .. 256] ],
             [ reverse @many[0 .. 256] ]),
       '200 NEW, 409 CONFLICT identity', '257 cookies, in theirs');

    is(asked('/', join('; ', @many), join(';', '_ga_1=1', @many),
             [ join('; ', @many[0 .. 199]), join('; ', @many[200 .. 399]) ],
             join('; ', @many[0 .. 398], 'c400=x'), join('; ', @many)),
       '200 NEW, 200 REPLAYED, 200 REPLAYED, 409 CONFLICT identity, '
       . '200 REPLAYED', '400 cookies');

    is(asked('/', join('; ', map { "_ga_$_=1; c$_=1" } 1 .. 200),
             join('; ', map { "c$_=1; _ga_$_=2" } reverse 1 .. 200)),
       '200 NEW, 200 REPLAYED', 'those that are ignored are not among them');
}

# All that one header may hold, in pairs as short as they can be and in the
# worst order, costs no more than as many bytes in another header.
{
    my $cpu = sub {
        my ($header) = @_;

        my $ticks = sub {
            my ($pid) = $n->workers;
            open my $f, '<', "/proc/$pid/stat" or die;
            my ($rest) = <$f> =~ /\) (.*)/;
            return (split ' ', $rest)[11];
        };

        my $before = $ticks->();

        for (1 .. 40) {
            $id++;
            my $r = $n->post("/?id=$id", key => $id, body => 'b',
                             headers => [ $header ]);
            return "status $r->{status}" if $r->{status} != 200;
        }

        return $ticks->() - $before;
    };

    # sixteen times as many cookies are sixteen times the work, not 256 times
    my $few = $cpu->('Cookie: ' . join ';', map { 'c' . $_ % 10 } 0 .. 4999);
    my $many = $cpu->('Cookie: ' . join ';', map { 'c' . $_ % 10 } 0 .. 79999);

    cmp_ok($many, '<=', 60 * ($few + 2),
           "80,000 cookies: $many ticks, 5,000: $few");
}

done_testing();
