#!/usr/bin/perl

# The page of idempotency_api, in a real browser: what people see of figures that
# the test chooses, and of the real ones.
#
# Screenshots are left in the directory BROWSER_SCREENSHOTS, if it is set.

use utf8;

use FindBin;
use lib "$FindBin::Bin/browser";
use Browser;
use Idempotency;
use Digest::SHA qw(sha256_base64);
use JSON::PP ();
use MIME::Base64 qw(decode_base64);
use Stage;
use Time::HiRes qw(time);

my $file = "$Stage::root/share/page.html";
my $page = Stage::slurp($file);

# without a browser this can be told as well
the_policy();

if (!grep { -x "$_/chromium" } split /:/, $ENV{PATH}) {
    diag('no chromium here: what it shows is not known');
    done_testing();
    exit;
}

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

my @results = qw(new nested replayed waited conflict in_progress in_doubt not_kept similar expired
                 missing malformed limited unavailable bypass);
my $json = JSON::PP->new->canonical->utf8;
my $stage = Stage->new;
my $dir = $stage->{dir};
my $browser;

END { undef $browser; $stage->end if $stage }

mkdir "$dir/$_" for 'browser', 'mock', 'mock/records', 'mock/key', 'mock/key/eu';
Stage::spew("$dir/mock/page.html", $page);
records('orders');
figures();
$stage->nginx(Stage::slurp("$Stage::root/t/browser/page.conf.in"));

my $url = "http://127.0.0.1:$stage->{port}{mock}/api/";

$browser = Browser->new("$dir/browser");
$browser->call('Runtime.enable');
$browser->before(<<'END');
    window.violations = [];
    document.addEventListener('securitypolicyviolation',
        e => violations.push(e.violatedDirective + ' ' + e.blockedURI));
    window.addEventListener('error', e => violations.push(e.message));
    window.addEventListener('unhandledrejection', e => violations.push(String(e.reason)));
END

subtest 'nothing yet' => \&nothing_yet;
subtest 'figures' => \&figures_shown;
subtest 'what needs attention' => \&attention;
subtest 'conflicts' => \&conflicts;
subtest 'the store behind' => \&store_behind;
subtest 'several zones' => \&several_zones;
subtest 'a million records' => \&a_million;
subtest 'a key' => \&a_key;
subtest 'what comes from outside stays text' => \&hostile;
subtest 'the server is gone' => \&gone;
subtest 'a real server' => \&real;

done_testing();


# --- the file -----------------------------------------------------------------

sub the_policy {
    cmp_ok(length $page, '<=', 31 * 1024, 'page.html is small');

    my ($policy) = $page =~ /http-equiv="Content-Security-Policy" content="([^"]*)"/;

    for my $tag (qw(style script)) {
        my ($text) = $page =~ m{<$tag>(.*?)</$tag>}s;
        my $hash = sha256_base64($text);

        $hash .= '=' while length($hash) % 4;
        like($policy, qr{(?:^|; )$tag-src 'sha256-\Q$hash\E'(?:;|$)},
             "its policy allows its $tag, and no other");
    }

    like($policy, qr/^default-src 'none'; connect-src 'self'; /, 'and nothing else');
    unlike($page =~ s{http://www\.w3\.org/2000/svg}{}r, qr{https?:|\bsrc=|\@import|url\(},
           'it loads nothing');
    unlike($page, qr/innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|\son[a-z]+=/,
           'and makes no markup of text');
}


# --- what is seen -------------------------------------------------------------

sub nothing_yet {
    figures(zone('orders'));
    see();
    is(tile('Requests'), '0', 'no requests');
    is(tile('Space used'), '0 %', 'nothing used');
    is(fact('space', 'Oldest'), 'none', 'no record');
    is(texts('#alerts li'), '', 'nothing that needs attention');
    is($browser->js(hidden('overview')), 1, 'one zone needs no list of them');
    is($browser->js(hidden('store') . ' && ' . hidden('behind')), 1, 'and there is no store behind');
    readable('nothing');

    click('#list');
    wait_said('No records.');

    figures();
    $browser->wait_for('!' . hidden('none'), 'words about no zone');
    is($browser->js(hidden('zone')), 1, 'no zone: nothing else');
}


sub figures_shown {
    figures(busy(1));
    see();
    figures(busy(2));
    until_seen(tile_js('Requests'), '2,800');

    is(tile('Duplicates answered'), '600', 'duplicates: those replayed, and those that waited');
    is(tile('Races'), '180', 'races');
    is(tile('Conflicts'), '40', 'conflicts');
    is(tile('In doubt'), '0', 'nothing in doubt');
    is(tile('Space used'), '25 %', 'space');
    is(row('results', 'replayed'), '500', 'a result');
    is(row('results', 'in progress'), '20', 'and one of two words');
    is(row('conflicts', 'identity'), '30', 'why conflicts are conflicts');
    is(fact('space', 'Full'), 'in 12 h', 'when it would be full');
    is(fact('space', 'Trend'), '+1 MiB an hour', 'at this rate');
    is(fact('space', 'Oldest'), 'recorded 3 h ago', 'the oldest record');
    like($browser->js('document.getElementById("wait-sum").textContent'),
         qr/^100 waited, half ≤ 50 ms, 99 % ≤ 1 s$/, 'how long they waited');
    is(row('wait', '10 ms – 50 ms'), '60', 'and how many for how long');

    # 1400 requests in 10 s
    is($browser->js('document.querySelector("#tiles .note").textContent'), '140 a second',
       'how many a second');

    for my $chart (qw(requests dups space)) {
        like($browser->js("document.querySelector('#c-$chart path').getAttribute('d')"),
             qr/^M[\d.]+ [\d.]+L[\d.]+ [\d.]+/, "$chart: drawn");
        like($browser->js("document.querySelector('#c-$chart svg').getAttribute('aria-label')"),
             qr/\d/, 'and said');
    }

    readable('figures');

    # a restart
    figures(busy(1));
    until_seen(tile_js('Requests'), '1,400');
    is($browser->js('document.querySelector("#tiles .note").textContent'), '0 a second',
       'a restart is no fall');

    my $dry = busy(3);
    $dry->{dry_run}{conflict} = 7;
    figures($dry);
    $browser->wait_for('!' . hidden('dry'), 'dry run');
    is($browser->js('[].find.call(document.querySelectorAll("#results tr"),
                     tr => tr.firstChild.textContent.startsWith("conflict")).lastChild.textContent'), '7', 'a dry run');

    # nobody looks
    $browser->js('Object.defineProperty(document, "hidden", { value: true, configurable: true });
                  void document.dispatchEvent(new Event("visibilitychange"))');
    $browser->wait_for('document.getElementById("state").textContent.includes("paused")', 'pause');

    # but for what it had asked for already
    my $asked;

    ok(until_true {
        $asked = asked();
        $browser->js('new Promise(done => setTimeout(done, 4500))');
        asked() == $asked;
    }, 'nobody looks: it asks for nothing');
    $browser->js('delete document.hidden; void document.dispatchEvent(new Event("visibilitychange"))');
    ok(until_true { asked() > $asked }, 'and then again');
}


sub attention {
    my $zone = busy(1);

    $zone->{bytes} = { size => 1000, used => 960, free => 40 };
    $zone->{records}{in_doubt} = 3;
    $zone->{available} = JSON::PP::false;
    $zone->{store} = store(up => JSON::PP::false, undelivered => 12);
    figures($zone);
    see();
    is(texts('#alerts li'), 'The zone is torn: nothing is protected, or let in, until nginx is reloaded.|'
       . 'The store behind is out of reach, or refused: the error log says why.|'
       . 'Outcomes yet to be delivered to the store behind: 12.|'
       . 'The zone is 96 % full, at this rate all of it in 12 h.|'
       . 'In doubt: 3 of the tokens. What they stand for may have been executed.', 'all of it');
    is(fact('store-facts', 'State'), 'DOWN: out of reach, or refused', 'the store');
    readable('attention');

    $zone = busy(1);
    $zone->{full_in} = 3599;
    figures($zone);
    see();
    is(texts('#alerts li'), 'The zone is 25 % full, at this rate all of it in 60 min.', 'full within the hour');
    $zone->{full_in} = 3600;
    figures($zone);
    until_seen('document.querySelectorAll("#alerts li").length', 0);
}


# of what came while the page is open, and of all before
sub conflicts {
    my $of = sub {
        my ($new, $conflict) = @_;
        my $zone = zone('orders');

        @{ $zone->{requests} }{qw(new conflict)} = ($new, $conflict);
        figures($zone);
    };
    my $told = 'document.querySelector("#alerts li")?.textContent ?? ""';

    $of->(300, 101);
    see();
    is($browser->js($told), 'Conflicts: 25.2 % of the requests. What differed is shown below.', 'of all');
    $of->(303, 102);
    until_seen($told, '');
    $of->(304, 103);
    until_seen($told, 'Conflicts: 33.3 % of the requests. What differed is shown below.');
}


sub store_behind {
    my $zone = busy(1);

    $zone->{store} = store();
    figures($zone);
    see();
    is(fact('store-facts', 'Kind'), 'redis, sync batched', 'its kind');
    is(fact('store-facts', 'State'), 'up', 'up');
    is(fact('store-facts', 'Undelivered'), '0 outcomes', 'nothing undelivered');
    is(fact('store-facts', 'Latency'), 'half ≤ 10 ms, 99 % ≤ 1 s', 'how soon it answers');
    is(row('errors', 'error: timeout'), '4', 'its errors');
    is($browser->js('document.querySelectorAll("#errors tr").length'), 1, 'those that there were');

    records('ordersbacking', map { record($_) } 1 .. 3);
    click('#behind');
    until_seen('document.querySelectorAll("#rows tr").length', 3);
}


# the page as the module serves it, with what the API tells
sub real {
    my $n = nginx(workers => 2, allow => qr/exited on signal/, server => <<'EOC');
        idempotency zone=z;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /eu { idempotency_scope eu; proxy_pass http://$TEST_NGINX_BACKEND; }
        location /idem/ { idempotency_api write=on; }
        location /read/ { idempotency_api; }
EOC

    my $at = 'http://127.0.0.1:' . $n->port;

    # the page's name for the server is that of the requests, so their scope is
    $url = "$at/idem/";
    see();
    is(tile('Requests'), '0', 'no requests yet');
    is($browser->js('[].map.call(document.querySelectorAll("#results tr"),
                     tr => tr.firstChild.firstChild.textContent).sort().join()'),
       join(',', sort map { s/_/ /gr } @results), 'all results have a row');
    is($browser->js('document.querySelectorAll("#results small:empty").length'), 0,
       'which says what it is');
    click('#list');
    wait_said('No records.');

    $n->post("/?id=real-$_", key => "key-$_", body => 'a') for 1 .. 120;
    $n->post('/?id=real-1', key => 'key-1', body => $_) for qw(a b);
    $n->post('/eu?id=real-eu', key => 'key-1', body => 'c');
    until_seen(tile_js('Requests'), 123);
    is(tile('Duplicates answered'), 1, 'a duplicate');
    is(row('conflicts', 'body'), 1, 'a conflict, and why');
    like(fact('space', 'Records'), qr/^121 done, 0 pending/, 'records');

    my %seen;
    click('#list');
    $browser->wait_for(first_token_js() . '.length === 64', 'records');

    for my $page (1 .. 50) {
        until_seen('document.getElementById("at").textContent', "page $page");
        $seen{$_}++ for split ' ', $browser->js('[].map.call(document.querySelectorAll("#rows tr"),
                                                 tr => tr.children[7].textContent).join(" ")');
        last if substr(disabled(), 1);
        click('#next');
    }

    is(scalar keys %seen, 121, 'all of them, page by page');
    is(scalar(grep { $_ > 1 } values %seen), 0, 'each once');
    readable('real');

    find('key-1');
    $browser->wait_for('!' . hidden('acts'), 'record');
    is($browser->js('document.querySelector("#rows tr").children[4].textContent'), 1, 'a key: its record');
    find('key-1', 'eu');
    until_seen('document.querySelector("#rows tr").children[4].textContent', 0);
    click('#acts button') for 1, 2;
    $browser->wait_for(said() . '.startsWith("Forgotten")', 'forgotten');
    ok(!$n->post('/eu?id=real-eu', key => 'key-1', body => 'c')->replayed, 'and fresh again');
    is(executions('real-eu'), 2, 'so it was executed once more');
    find('no-such-key');
    $browser->wait_for(said() . '.startsWith("Nothing is recorded")', 'words about an unknown key');

    # in doubt
    my $lost = $n->start('POST', '/?id=lost&gate=1', key => 'lost');
    held('lost');
    kill KILL => $n->workers;
    $n->wait_log(qr/has gone, it is in doubt/);
    until_seen(tile_js('In doubt'), 1);
    like(texts('#alerts li'), qr/^In doubt: 1 of the tokens/, 'a doubt is told');
    find('lost');
    $browser->wait_for('!' . hidden('acts'), 'record');
    click('#acts button:first-child') for 1, 2;
    $browser->wait_for('document.querySelector("#rows tr").firstChild.textContent === "not kept"
                        || ' . said(), 'settled');
    # its answer may be lost, what it did is not
    find('lost') if answers_late();
    until_seen('document.querySelector("#rows tr").firstChild.textContent', 'not kept');
    until_seen(tile_js('In doubt'), 0);
    go('lost');
    $lost->close;

    $url = "$at/read/";
    see();
    find('key-1');
    $browser->wait_for('!' . hidden('acts'), 'record');
    click('#acts button') for 1, 2;
    $browser->wait_for(said() . '.includes("read-only")', 'words about a read-only API');

    # from elsewhere
    is($browser->js('violations.join()'), '', 'nothing went wrong in the page');
    like($n->get('/idem/')->header('Content-Security-Policy'), qr/frame-ancestors 'none'/, 'it is in no frame');
    $n->stop;
}


sub several_zones {
    figures(zone('orders'), busy(1, 'payments'), zone('forms', store => store(up => JSON::PP::false)));
    see();
    is(texts('#zones button'), 'orders|payments|forms', 'each has a row');
    is($browser->js('document.querySelectorAll("#zones tr")[2].lastChild.textContent'),
       'redis, DOWN', 'with what needs attention');
    click('#zones tr:nth-child(2) button');
    until_seen(tile_js('Requests'), '1,400');
    is($browser->js('location.hash'), '#payments', 'one can be chosen, and kept as a bookmark');
    readable('zones');
    $browser->reload;
    until_seen(tile_js('Requests'), '1,400');
    $browser->js('document.querySelector("#zones tr:nth-child(3) button").focus()');
    my $n = asked();
    until_true { asked() > $n + 1 };
    is($browser->js('document.activeElement.textContent'), 'forms', 'the focus stays');
}


sub a_million {
    my $zone = busy(1, 'many');

    $zone->{records} = { pending => 0, done => 1e6, not_kept => 0, in_doubt => 0 };
    records('many', map { record($_) } 1 .. 50);
    records('many2', map { record($_) } 51 .. 100);
    records('many3', record(101));
    figures($zone);
    see();
    like(fact('space', 'Records'), qr/^1M done/, 'a million');
    click('#list');
    until_seen('document.querySelectorAll("#rows tr").length', 50);
    is(first_token(), sprintf('%064x', 1), 'the first page');
    readable('records');
    click('#next');
    until_seen(first_token_js(), sprintf('%064x', 51));
    is(disabled(), '00', 'the second, and on both sides of it there is another');
    click('#next');
    until_seen('document.querySelectorAll("#rows tr").length', 1);
    is(disabled(), '01', 'the last one');
    click('#prev');
    until_seen(first_token_js(), sprintf('%064x', 51));
    click('#prev');
    until_seen(first_token_js(), sprintf('%064x', 1));
    is(disabled(), '10', 'and all the way back');
}


sub a_key {
    my $doubtful = record(7, outcome => 'in_doubt');

    Stage::spew("$dir/mock/key/known", $json->encode(record(5)) . "\n");
    Stage::spew("$dir/mock/key/ключ", $json->encode(record(6)) . "\n");
    Stage::spew("$dir/mock/key/eu/known", $json->encode($doubtful) . "\n");
    figures(busy(1));
    see();

    find('unknown');
    $browser->wait_for(said() . '.startsWith("Nothing is recorded")', 'words about an unknown key');
    is($browser->js(hidden('acts')), 1, 'nothing to be done');

    find('known');
    until_seen(first_token_js(), sprintf('%064x', 5));
    is(texts('#acts button'), 'Forget', 'it can be forgotten');
    readable('key');
    click('#acts button');
    like(texts('#acts button'), qr/Click again\.$/, 'not by one click');
    click('#acts button');
    $browser->wait_for(said() . '.startsWith("Forgotten")', 'forgotten');

    find('ключ');
    until_seen(first_token_js(), sprintf('%064x', 6));

    find('known', 'eu');
    until_seen(first_token_js(), sprintf('%064x', 7));
    is(texts('#acts button'), 'It was executed|It was not executed|Forget', 'a doubt can be settled');
    click('#acts button:first-child') for 1, 2;
    $browser->wait_for(said() . '.includes("read-only")', 'words about a read-only API');

    unlike(Stage::slurp("$dir/asked.log") =~ s{/zones/orders/records\K\?scope=eu}{}gr,
           qr/known|%D0/, 'no key is in a log');
}


sub hostile {
    my $bad = '<img src=x onerror=alert(1)>"\'&';
    my $zone = busy(1, $bad);

    $zone->{requests}{$bad} = 1;
    $zone->{conflicts}{$bad} = 2;
    $zone->{store} = store(kind => $bad, sync => $bad, errors => { $bad => 1 });
    records($bad, record(1, outcome => $bad, token => $bad, owner => { $bad => $bad },
                         fingerprint => $bad, status => $bad, recorded => $bad));
    figures($zone, zone('other'));
    see();
    is($browser->js('document.getElementById("name").textContent'), "Zone $bad", 'a name');
    click('#list');
    $browser->wait_for('document.querySelectorAll("#rows tr").length', 'record');
    is(first_token(), $bad, 'a record');
    is($browser->js('document.querySelectorAll("#shown img, #shown script").length'), 0, 'no markup');

    figures(zone('z' x 200), zone('other'));
    see();
    readable('long');
}


sub gone {
    figures(busy(1));
    see();

    # the API's own words, which tell what to do
    open my $f, '>', "$dir/mock/refused" or die $!;
    close $f;
    $browser->wait_for('document.getElementById("state").textContent.includes("it answers 403: "
                        + "Only this machine may ask. Say remote=on.")', 'why it is refused');
    unlink "$dir/mock/refused";

    unlink "$dir/mock/zones";
    $browser->wait_for('document.getElementById("state").textContent.includes("answers 404")',
                       'words about a refusal');
    $stage->stop($stage->{nginx});
    $browser->wait_for('document.getElementById("state").className === "gone"
                        && !document.getElementById("state").textContent.includes("404")',
                       'words about a server that is gone');
    like($browser->js('document.getElementById("state").textContent'),
         qr/^no answer from the server, these figures are from \d\d:\d\d:\d\d$/, 'it says so');
    is(tile('Requests'), '1,400', 'and what was known stays');
    readable('gone');
}


# --- how it looks ---------------------------------------------------------------

sub readable {
    my ($name) = @_;

    screenshots($name);
    $browser->phone(1);
    cmp_ok($browser->js('document.documentElement.scrollWidth'), '<=', 360,
           "$name: nothing sticks out of a phone");
    is($browser->js(cut_off()), '', "$name: ... nor is cut off, or has to be scrolled for");
    cmp_ok($browser->js('Math.min(...[].filter.call(document.querySelectorAll(
                "#shown button, #shown input"), e => e.offsetParent)
                .map(e => e.getBoundingClientRect().height))'), '>=', 24,
           "$name: what is touched is large enough");
    screenshots("$name-phone");
    $browser->phone(0);

    my $light = contrast();
    $browser->call('Emulation.setEmulatedMedia',
                   features => [{ name => 'prefers-color-scheme', value => 'dark' }]);
    my $dark = contrast();
    screenshots("$name-dark");
    $browser->call('Emulation.setEmulatedMedia', features => []);

    # that of WCAG's level AA
    cmp_ok($light->[0], '>=', 4.5, "$name: contrast in the light ($light->[1])");
    cmp_ok($dark->[0], '>=', 4.5, "$name: contrast in the dark ($dark->[1])");

    is($browser->js('[].filter.call(document.querySelectorAll("input"),
                     i => !i.labels.length).length'), 0, "$name: each field has its label");
    is($browser->js('[].filter.call(document.querySelectorAll("svg:not([aria-hidden])"),
                     s => !s.getAttribute("aria-label")).length'), 0,
       "$name: each drawing has its words");
    is($browser->js('violations.join()'), '', "$name: nothing went wrong in the page");
}


# the least contrast of a text with what is behind it, and whose it is
sub contrast {
    return $browser->js(<<'END');
        (function () {
            function parse(c) { return c.match(/[\d.]+/g).map(Number); }
            function light(c) {
                var [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92
                                           : Math.pow((v + 0.055) / 1.055, 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            }
            var least = [99, ''];
            for (var e of document.querySelectorAll('body *')) {
                var own = [].some.call(e.childNodes, n => n.nodeType === 3 && n.data.trim());
                if (!own || !e.offsetParent || e.disabled) continue;
                for (var p = e, back; p && (!back || back[3] === 0); p = p.parentElement)
                    back = parse(getComputedStyle(p).backgroundColor);
                var a = light(parse(getComputedStyle(e).color).slice(0, 3));
                var b = light(back.slice(0, 3));
                var ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                if (ratio < least[0]) least = [ratio, e.tagName + ': ' + e.textContent.slice(0, 20)];
            }
            return least;
        })()
END
}


# what is wider than its place, or stands beyond the edge
sub cut_off {
    return <<'END';
        [].filter.call(document.querySelectorAll('#shown *:not(input)'), e => {
            var box = e.getBoundingClientRect();
            return box.width && !e.closest('svg')
                   && (box.right > innerWidth || e.clientWidth && e.scrollWidth > e.clientWidth + 1);
        }).map(e => e.tagName + ' ' + e.textContent.slice(0, 20)).slice(0, 5).join('|')
END
}


# the whole page
sub screenshots {
    my ($name) = @_;
    my $directory = $ENV{BROWSER_SCREENSHOTS} or return;

    Stage::spew("$directory/page-$name.png", decode_base64(
        $browser->call('Page.captureScreenshot', captureBeyondViewport => JSON::PP::true)->{data}));
}


# --- helpers --------------------------------------------------------------------

# the page, once it has its first figures
sub see {
    $browser->go('about:blank');
    $browser->wait_for('location.href === "about:blank"', 'blank page');
    $browser->go($url);
    $browser->wait_for('document.getElementById("state").textContent === "live"', 'figures');
}


sub click {
    my ($css) = @_;

    $browser->js("document.querySelector('$css').scrollIntoView({ block: 'center' })");
    $browser->click($css, wait => 1);
}


sub find {
    my ($key, $scope) = map { JSON::PP->new->allow_nonref->encode($_ // '') } @_, '';

    $browser->js("document.getElementById('said').textContent = '';
                  document.getElementById('key').value = $key;
                  document.getElementById('scope').value = $scope;
                  void document.getElementById('find').requestSubmit()");
}


sub said { return 'document.getElementById("said").textContent' }

sub wait_said { $browser->wait_for(said() . " === '$_[0]'", qq("$_[0]")) && pass($_[0]) }

sub hidden { return "Number(document.getElementById('$_[0]').hidden)" }

sub texts {
    my $said = $browser->js("[].map.call(document.querySelectorAll('$_[0]'),
                                         e => e.textContent).join('|')");
    return $said;
}

sub tile_js {
    return "[].find.call(document.querySelectorAll('#tiles div'),
                         d => d.children[0].textContent === '$_[0]').children[1].textContent";
}

sub tile { return $browser->js(tile_js(@_)) }

sub fact {
    return $browser->js("[].find.call(document.querySelectorAll('#$_[0] dt'),
                         d => d.textContent === '$_[1]').nextSibling.textContent");
}

sub row {
    return $browser->js("[].find.call(document.querySelectorAll('#$_[0] tr'),
                         tr => tr.firstChild.textContent.startsWith('$_[1]'))
                         .children[2].textContent");
}

sub first_token_js { return 'document.querySelector("#rows tr").children[7].textContent' }

sub first_token { return $browser->js(first_token_js()) }

sub disabled { return $browser->js('["prev", "next"].map(i => Number(document.getElementById(i).disabled)).join("")') }

sub until_seen {
    my ($js, $text) = @_;
    my $wanted = JSON::PP->new->allow_nonref->encode("$text");

    ok($browser->wait_for("String($js) === $wanted", $text), "$text is seen");
}

sub asked { return scalar(() = Stage::slurp("$dir/asked.log") =~ m{/api/zones$}mg) }


# --- figures ----------------------------------------------------------------------

# figures(ZONES): what the API says from now on; each time 10 s have passed
sub figures {
    my $time = (our $now += 10) + 1_763_500_000.25;

    Stage::spew("$dir/mock/zones.new", $json->encode({ version => '0.1.0', time => $time,
                                                       zones => [@_] }));
    rename "$dir/mock/zones.new", "$dir/mock/zones" or die $!;
}


sub zone {
    my ($name, %o) = @_;
    my %none = map { $_ => 0 } @results;

    return {
        name => $name, bytes => { size => 16 << 20, used => 0, free => 16 << 20 }, evict => 'off',
        records => { map { $_ => 0 } qw(pending done not_kept in_doubt) },
        requests => { %none }, dry_run => { %none },
        conflicts => { map { $_ => 0 } qw(action identity body settings) },
        races => 0, expired => 0, in_doubt => 0, released => 0, replayed_bytes => 0,
        wait => histogram(), oldest => undef, growth => undef, full_in => undef, store => undef, %o
    };
}


# busy(N): N times as much of all that is counted
sub busy {
    my ($n, $name) = @_;
    my $zone = zone($name // 'orders', oldest => 10800, growth => 1 << 20, full_in => 43200,
                    bytes => { size => 16 << 20, used => 4 << 20, free => 12 << 20 },
                    races => 90 * $n, expired => 1000 * $n, released => 5 * $n,
                    replayed_bytes => 300_000 * $n, wait => histogram(0, 20, 80, 100, 100));

    $zone->{records} = { pending => 2, done => 990 * $n, not_kept => 8 * $n, in_doubt => 0 };
    @{ $zone->{requests} }{qw(new replayed waited conflict in_progress missing)}
        = map { $_ * $n } 1000, 250, 50, 20, 10, 70;
    @{ $zone->{conflicts} }{qw(identity body)} = map { $_ * $n } 15, 5;

    return $zone;
}


# histogram(CUMULATIVE COUNTS..., COUNT)
sub histogram {
    my @le = (0.005, 0.01, 0.05, 1);
    my $all = @_ > @le ? pop : 0;

    return { count => $all, sum => $all / 20,
             buckets => [map { { le => $le[$_], count => $_[$_] // 0 } } 0 .. $#le] };
}


sub store {
    return { kind => 'redis', up => JSON::PP::true, sync => 'batched',
             latency => histogram(0, 50, 70, 100, 100), errors => { timeout => 4, refused => 0 },
             undelivered => 0, @_ };
}


sub record {
    my ($n, %o) = @_;

    return { token => sprintf('%064x', $n), fingerprint => 'f' x 64, outcome => 'done',
             status => 201, recorded => 1_763_500_000, expires => 1_763_586_400, replays => $n,
             fence => 100 + $n, size => 350, owner => undef, %o };
}


sub records {
    my ($name, @records) = @_;

    Stage::spew("$dir/mock/records/$name", join '', map { $json->encode($_) . "\n" } @records);
}
