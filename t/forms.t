#!/usr/bin/perl

# docs/forms.md's configuration, as it stands there, in a real browser: logins
# without JavaScript, comments, orders, neighbours, visitors without cookies, and
# what scripts send. What the application has done is the judge.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/browser", "$FindBin::Bin/lib";

use Browser;
use HTTP::Tiny;
use JSON::PP qw(decode_json encode_json);
use Pages qw(blocks);
use Stage;
use Test::More;

Stage::needs(qw(chromium php php-cgi curl openssl));

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

my $stage = Stage->new;
my $dir = $stage->{dir};
my $http = HTTP::Tiny->new(timeout => 60, max_redirect => 0);
our $browser;
my (%browser, $url, $asked);

END { undef $browser; undef %browser; $stage->end if $stage }

set_the_stage();

$browser = browser('ann');


# --- the cookie --------------------------------------------------------------

{
    my $cookie = qr/^visitor=[0-9a-f]{32}; Path=\/; HttpOnly; SameSite=Lax$/;
    my ($first) = visitor('/');

    like($first, $cookie, 'the first page has a cookie');
    isnt((visitor('/'))[0], $first, 'each visitor another one');
    is_deeply([visitor('/', 'visitor=abc')], [], 'who has one keeps it');
    is_deeply([visitor('/', '_ga=1; visitor=abc')], [], '... beside others');
    is_deeply([visitor('/image.gif')], [], 'an image has none');
    is_deeply([visitor('/404')], [], 'nor has what is not there');

    for my $uri (qw(/logout /Users/sign_out /wp-login.php?action=logout)) {
        my ($new) = visitor($uri, 'visitor=abc');
        like($new, $cookie, "$uri: another one");
    }

    my $secure = sub {
        return join '', grep { s/^Set-Cookie: (?=.*visitor=)//i } split /\r\n/,
               `curl -skD - -o $dir/page -H 'Cookie: $_[0]' https://127.0.0.1:$stage->{port}{tls}/`;
    };

    like($secure->('a=b'), qr/^__Host-visitor=\w{32}; Path=\/; HttpOnly; SameSite=Lax; Secure$/,
         'HTTPS: for HTTPS only, by this host only');
    like($secure->('visitor=abc'), qr/^__Host-visitor=/, '... what another host may have set is not it');
    like($secure->('x__Host-visitor=abc'), qr/^__Host-visitor=/, '... nor is what only ends like it');
    is($secure->('a=b; __Host-visitor=abc; c=d'), '', '... who has one keeps it');
    is(scalar(my @http = visitor('/', '__Host-visitor=abc')), 1, '... HTTP has its own');

    # a script says itself which of its requests are one
    my @vote = ('/vote', { plus => 1 }, 'sec-fetch-mode' => 'cors');

    is(decode_json(send_form(@vote)->{content})->{votes}, $_, "a script's vote $_") for 1 .. 3;
    send_form(@vote, 'idempotency-key' => 'one') for 1 .. 2;
    is(done('vote'), 4, 'and two with one key are one');

    # a replay begins no session for nobody in particular
    for my $who ([], [cookie => 'visitor=abc']) {
        my @sessions = map {
            my $set = send_form('/login', { user => 'Zoe' }, 'sec-fetch-mode' => 'navigate', @$who)
                          ->{headers}{'set-cookie'} // '';
            join '', (ref $set ? "@$set" : $set) =~ /session=(\w+)/;
        } 1, 2;

        like($sessions[0], qr/^\w{32}$/, 'a login begins a session');
        is($sessions[1], @$who ? $sessions[0] : '',
           @$who ? "the visitor's second click gets it" : "not a stranger's second click");
    }

    # what a browser makes for each POST is no key
    send_form('/order', { text => 'by key' }, 'sec-fetch-mode' => 'navigate',
              'idempotency-key' => $_) for 1, 2;
    is(done('order', 'by key'), 1, "a browser's own key doesn't count");
}


# --- without JavaScript, and with the guard ----------------------------------

for my $how ('without JavaScript', 'with the guard') {
    subtest $how => sub {
        $browser->javascript($how eq 'with the guard');

        logins($how);
        comments($how);
        orders($how);
        neighbours($how);
        no_cookies($how);
    };
}

subtest 'a script' => sub {
    $browser->javascript(1);
    open_site();
    votes_are(3, "for (const n of [1, 2, 3]) { await vote() }", 'three votes');
    votes_are(3, "await Promise.all([vote(), vote(), vote()])", 'three at once');
    votes_are(1, "for (const n of [1, 2, 3]) { await vote({ 'Idempotency-Key': 'a vote' }) }",
              'three with one key');
};

is($stage->complaints, '', 'nginx has no complaints');

done_testing();


# a first visitor: no cookie at all, when the page comes
sub logins {
    my ($how) = @_;

    $browser->call('Network.clearBrowserCookies');
    my $n = done('login');

    # within a minute, the same name and password each time
    for my $time (1, 2) {
        open_site();
        twice('#login button');
        greeted('Ann');
        is(done('login') - $n, $time, "$how, login $time: one");

        my ($logout) = done('logout');

        twice('#logout button');
        greeted('stranger');
        is(done('logout') - $logout, 1, "$how, logout $time: one");
    }
}


sub comments {
    my ($how) = @_;

    login();
    write_into('#comment', $how);
    twice('#comment button');
    greeted('Ann');
    is(done('comment', $how), 1, "$how: one comment");

    write_into('#comment', "$how, another");
    twice('#comment button');
    greeted('Ann');
    is(done('comment', "$how, another"), 1, "$how: another comment");
}


# back to the form, and sent again
sub orders {
    my ($how) = @_;

    open_site();
    write_into('#order', $how);
    twice('#order button');
    greeted('Ann');
    is(done('order', $how), 1, "$how: one order");

    $browser->back;
    $browser->wait_for('document.readyState === "complete" && document.forms.order', 'form');
    write_into('#order', $how);
    leave();
    $browser->click('#order button');
    greeted('Ann');
    is(done('order', $how), 1, "$how: back, and again: still one");
}


# behind one address, with the same browser
sub neighbours {
    my ($how) = @_;
    my $text = "$how, neighbours";

    each_of(sub {
        open_site();
        write_into('#comment', $text);
        twice('#comment button');
        greeted(undef);
    }, browser('ann'), browser('ben'));
    is(done('comment', $text), 2, "$how: a neighbour's comment is another one");
}


sub no_cookies {
    my ($how) = @_;
    my $text = "$how, no cookies";
    my ($one, $other) = map { browser($_) } 'carl, without cookies', 'dora, without cookies';

    my $comment = sub {
        open_site();
        write_into('#comment', $text);
        twice('#comment button');
        greeted('stranger');
    };

    each_of($comment, $one);
    is(done('comment', $text), 1, "$how, no cookies: one comment");
    is($one->js('document.cookie'), '', 'there are none');

    # with JavaScript each page view has its token
    each_of($comment, $other);
    is(done('comment', $text), $how eq 'with the guard' ? 2 : 1,
       "$how, no cookies: the neighbour's");

    $text = "$how, no cookies, another language";
    each_of($comment, $one);
    $other->call('Network.setUserAgentOverride', acceptLanguage => 'de',
                 userAgent => $other->js('navigator.userAgent'));
    each_of($comment, $other);
    is(done('comment', $text), 2, "$how, no cookies: a neighbour with another language");
}


sub votes_are {
    my ($votes, $code, $what) = @_;
    my $n = done('vote');

    $browser->js(<<"END");
        (async function () {
            const vote = headers => fetch('/vote', {
                method: 'POST', headers, body: new URLSearchParams({ plus: 1 }),
            });

            $code
        })()
END
    is(done('vote') - $n, $votes, "$what: $votes");
}


# --- helpers -----------------------------------------------------------------

sub set_the_stage {
    my ($conf) = map { $_->{text} } grep { $_->{heading} eq 'Configuration' }
                 blocks('docs/forms.md', 'nginx')
        or die 'docs/forms.md has no configuration';

    # as it is, but for its ports, and with HTTPS
    $conf =~ s/listen 127\.0\.0\.1:8000;/listen 127.0.0.1:PORT(site);
               listen 127.0.0.1:PORT(tls) ssl;
               ssl_certificate cert.pem;
               ssl_certificate_key cert.pem;/ or die 'no port';
    $conf =~ s/http:\/\/127\.0\.0\.1:8001/http:\/\/127.0.0.1:PORT(app)/ or die 'no application';

    mkdir "$dir/browser";
    system("openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 9"
           . " -keyout $dir/key.pem -out $dir/crt.pem 2>$dir/openssl.out"
           . " && cat $dir/key.pem $dir/crt.pem >$dir/cert.pem") == 0 or die 'openssl';

    Stage::spew("$dir/site.php", Stage::slurp("$Stage::root/t/browser/site.php"));
    $stage->php(DATABASE => "$dir/site.sqlite");
    $stage->nginx(<<"END");
load_module modules/ngx_http_idempotency_module.so;
pid site.pid;
error_log site.error.log notice;
worker_processes 2;

events {
}

http {
    client_body_temp_path temp_body;
    proxy_temp_path temp_proxy;
    fastcgi_temp_path temp_fastcgi;
    uwsgi_temp_path temp_uwsgi;
    scgi_temp_path temp_scgi;

    log_format forms '\$request \$status \$idempotency_status \$idempotency_reason';
    access_log site.access.log forms;

    $conf

    server {
        listen 127.0.0.1:PORT(status);
        access_log off;
        stub_status;
    }

    server {
        listen 127.0.0.1:PORT(app);
        server_name app;
        access_log off;

        fastcgi_param SCRIPT_FILENAME $dir/site.php;
        fastcgi_param REQUEST_METHOD \$request_method;
        fastcgi_param REQUEST_URI \$request_uri;
        fastcgi_param QUERY_STRING \$query_string;
        fastcgi_param CONTENT_TYPE \$content_type;
        fastcgi_param CONTENT_LENGTH \$content_length;

        location / {
            fastcgi_pass unix:php.sock;
        }
    }
}
END
    $url = "http://127.0.0.1:$stage->{port}{site}";
}


# browser(NAME): one each, with cookies of its own, or none if the name says so
sub browser {
    my ($name) = @_;
    (my $at = "$dir/browser/$name") =~ s/\W+$|,.*//;

    return $browser{$name} ||= do {
        mkdir $_ for $at, "$at/profile", "$at/profile/Default";

        Stage::spew("$at/profile/Default/Preferences", encode_json(
            { profile => { default_content_setting_values => { cookies => 2 } } }))
            if $name =~ /without cookies/;

        Browser->new($at, screenshots => $ENV{BROWSER_SCREENSHOTS});
    };
}


# each_of(CODE, BROWSERS): one after the other, with JavaScript as it is now
sub each_of {
    my ($code, @browsers) = @_;
    my $on = $browser->{scripts};

    for my $other (@browsers) {
        local $browser = $other;

        $browser->javascript($on);
        $code->();
    }
}


sub visitor {
    my ($uri, $cookies) = @_;
    my $set = $http->get("$url$uri", { headers => { $cookies ? (cookie => $cookies) : () } })
                   ->{headers}{'set-cookie'} // [];

    return grep { /^visitor=/ } ref $set ? @$set : $set;
}


sub send_form {
    my ($uri, $fields, %headers) = @_;

    return $http->post_form("$url$uri", $fields, { headers => \%headers });
}


# what the application has done
sub done {
    my ($what, $text) = @_;

    open my $php, '-|', 'php', '-r', <<'END', "$dir/site.sqlite", $what, $text // ()
        $query = (new PDO("sqlite:$argv[1]"))
                     ->prepare('SELECT count(*) FROM done WHERE what = ?'
                               . (isset($argv[3]) ? ' AND text = ?' : ''));
        $query->execute(array_slice($argv, 2));
        echo $query->fetchColumn();
END
        or die "php: $!\n";
    return readline $php;
}


sub open_site {
    leave();
    $browser->go("$url/");
    another_page();
}


# the page, for another one
sub leave { eval { $browser->js('void (document.documentElement.dataset.seen = 1)') } }


# what it says, as the next one may be on its way already
sub another_page {
    return $browser->wait_for("document.readyState === 'complete' && document.forms.order
                               && !document.documentElement.dataset.seen
                               && document.querySelector('h1').innerText", 'another page');
}


sub login {
    open_site();
    leave();
    $browser->click('#login button');
    greeted('Ann');
}


sub write_into {
    my ($form, $text) = @_;

    $browser->js("void (document.querySelector('$form [name=text]').value = '$text')");
}


# two clicks, the second one while the first is being executed, if it is (and has
# not been answered by what somebody else's was). Without JavaScript nginx has the
# second request before the first one's answer, whose cookies it would have else
sub twice {
    my ($button) = @_;
    my $where = $browser->where($button);
    my ($replays, $requests) = (replays(), requests());

    leave();
    $stage->under_way("$dir/site.sqlite", sub { $browser->click($where) }, sub {
        $browser->click($where, wait => 1);
        $stage->until('second request', sub {
            replays() > $replays || requests() - $requests >= 2;
        }) if !$browser->{scripts};
    }, \&replays);
}


sub replays { return scalar(() = Stage::slurp("$dir/site.access.log") =~ /^POST .* REPLAYED/mg) }


# what nginx has begun to read, without the questions for that
sub requests {
    my ($all) = $http->get("http://127.0.0.1:$stage->{port}{status}/")->{content}
                =~ /^\s*\d+ \d+ (\d+)\s*$/m
        or die 'no number of requests';

    return $all - ++$asked;
}


sub greeted {
    my ($name) = @_;

    my $hello = another_page();

    is($hello, "Hello, $name", "it says hello to $name") if defined $name;
}
