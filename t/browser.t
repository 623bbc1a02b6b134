#!/usr/bin/perl

# Double submits, as people make them, in a real browser: examples/legacy-form.conf
# with the guard script, without it, and without the module. How many rows the
# application has inserted is the judge.
#
# Screenshots of the pages that a user may see are left in the directory
# BROWSER_SCREENSHOTS, if it is set. BROWSER_SCRIPTS is a directory with builds of
# htmx and Turbo (htmx*.js, turbo*.js) to be tried beside their stand-ins.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/browser";

use Browser;
use Commands qw(until_true);
use HTTP::Tiny;
use JSON::PP qw(decode_json);
use Stage;
use Test::More;
use Time::HiRes qw(sleep time);

require "$FindBin::Bin/browser/guard.pl";

Stage::needs(qw(chromium php php-cgi));

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

our $stage = Stage->new;
our $dir = $stage->{dir};
our ($browser, $tab, $at, $called);

END { undef $browser; $stage->end if $stage }

set_the_stage();

$browser = Browser->new("$dir/browser", screenshots => $ENV{BROWSER_SCREENSHOTS});
$tab = $browser->{tab};


# --- the ways to submit twice ------------------------------------------------
#
# Each is tried at all three: unprotected it must show that it is one.

twice('a double click', sub {
    weather();
    open_form();
    meanwhile(clicks(1, 2));
    thanked();
});

twice('Enter, impatiently', sub {
    weather();
    open_form();
    meanwhile((sub { $browser->press('Enter', wait => 1) }) x 3);
    thanked();
}, 3);

twice('a slow server, and another click', sub {
    weather();
    open_form();
    meanwhile(clicks(1, 1));
    thanked();
});

twice('a slow server, stopped, and another click', sub {
    weather();
    open_form();
    my ($click) = clicks(1);

    meanwhile($click, sub {
        $browser->stop;
        $browser->wait_for('!document.querySelector("[aria-busy]")', 'form that is free');
        $click->();
    });
    thanked();
});

twice('reload of the answer', sub {
    weather('page');
    open_form();
    $browser->click('button');
    $browser->wait_for_page('Thank you for booking');
    reload();
    $browser->wait_for_page('Thank you for booking');
});

twice('back, and sent again', sub {
    weather();
    open_form();
    $browser->click('button');
    thanked();
    back();
    $browser->click('button');
    thanked();
});

twice('back to a form that the browser did not keep, and sent again', sub {
    weather('no-store');
    my $name = open_form();
    $browser->click('button');
    thanked();
    back();
    fill($name);
    $browser->click('button');
    thanked();
});

twice('two tabs, one after the other', sub {
    my ($site) = @_;

    weather();
    open_form();
    $browser->click('button');
    thanked();

    in_another_tab(sub {
        open_form();
        $browser->click('button');
        is(answered(), $site eq 'guarded' ? 409 : 200,
           "$site, two tabs, one after the other: the second answer");
    });
});

twice('two tabs at once', sub {
    my ($site) = @_;
    my @answers;

    weather();
    open_form();

    in_another_tab(sub {
        open_form();
        my $other = $browser->{tab};

        meanwhile(map { my $in = $_;
                        sub { $browser->switch($in); $browser->click('button', wait => 1) }
                      } $tab, $other);
        push @answers, answered();
    });

    push @answers, answered();
    is_deeply([sort @answers], [200, $site eq 'guarded' ? 409 : 200],
              "$site, two tabs at once: the answers");
});

for my $how (['reload', sub { reload() }],
             ['back and again', sub { back(); $browser->click('button') }])
{
    my ($name, $again) = @$how;

    twice("an error, $name", sub {
        weather('error');
        open_form();
        $browser->click('button');
        $browser->wait_for_page('Oops');
        $again->();
        $browser->wait_for_page('Oops');
    });

    twice("no answer, $name", sub {
        weather('gone');
        open_form();
        $browser->click('button');
        $browser->wait_for_page('502 Bad Gateway');
        $again->();
        $browser->wait_for_page('502 Bad Gateway');
    });
}

for my $how (['a double click', sub { meanwhile(clicks(1, 2)) }],
             ['Enter twice', sub { meanwhile((sub { $browser->press('Enter', wait => 1) }) x 2) }],
             ['reload of the answer', sub {
                 $browser->click('button');
                 $browser->wait_for_page('Thank you for booking');
                 reload();
             }])
{
    my ($name, $what) = @$how;

    twice("no JavaScript, $name", sub {
        $browser->javascript(0);
        weather('page');
        open_form();
        $what->();
        $browser->wait_for_page('Thank you for booking');
        $browser->javascript(1);
    });
}


# --- what must not be taken for that -----------------------------------------

for my $site (qw(unprotected protected guarded)) {
    try_at($site, 'back, something else, and sent', 2, sub {
        weather();
        open_form();
        $browser->click('button');
        thanked();
        back();
        $browser->js('document.forms[0].elements.note.value = "for a friend", 0');
        $browser->click('button');
        thanked();
    });

    try_at($site, 'the server could not be reached, reload', 1, sub {
        weather();
        open_form();
        $stage->stop_php;
        $browser->click('button');
        $browser->wait_for_page('502 Bad Gateway');
        start_php();
        reload();
        thanked();
    });

    try_at($site, 'the server could not be reached, back and again', 1, sub {
        weather();
        open_form();
        $stage->stop_php;
        $browser->click('button');
        $browser->wait_for_page('502 Bad Gateway');
        start_php();
        back();
        $browser->click('button');
        thanked();
    });
}


# --- the guard, form by form -------------------------------------------------

subtest 'guard: what is sent' => \&forms_sent;
subtest 'guard: what is left alone' => \&forms_left_alone;
subtest 'guard: the button' => \&the_button;
subtest 'guard: its file' => \&the_file;
subtest 'guard: what is executed' => \&executed;


# --- what a user reads -------------------------------------------------------

subtest 'refusals' => \&refusals;

is($stage->complaints, '', 'nginx has no complaints');

done_testing();


# --- the stage ---------------------------------------------------------------

sub set_the_stage {
    my $conf = Stage::slurp("$Stage::root/examples/legacy-form.conf");
    my $own = Stage::slurp("$Stage::root/t/browser/nginx.conf.in");
    my %port = (8440 => 'guarded', 8441 => 'protected', 8442 => 'unprotected');

    # the example as it is, but for its ports and the application's bad days
    $conf =~ s/127\.0\.0\.1:(844[0-2])/127.0.0.1:PORT($port{$1})/g;
    $conf =~ s/127\.0\.0\.1:8443/unix:php.sock/g;
    $conf =~ s/\$document_root\/index\.php/$dir\/app.php/;
    $conf =~ s/^}\n\z/$own}\n/m or die 'no place for more servers';

    mkdir "$dir/$_" for qw(legacy-form browser pages);
    copy("$Stage::root/examples/legacy-form/index.php", "$dir/legacy-form/index.php");
    copy("$Stage::root/t/browser/app.php", "$dir/app.php");
    copy("$Stage::root/t/browser/$_", "$dir/pages/$_") for qw(forms.html cases.html cases.js);
    copy($_, "$dir/pages/real-" . s{.*/}{}r)
        for glob(($ENV{BROWSER_SCRIPTS} // "$dir/none") . '/*.js');

    weather();
    start_php();
    $stage->nginx($conf);
}


sub start_php { $stage->php(WEATHER => "$dir/weather") }


sub copy {
    my ($from, $to) = @_;

    Stage::spew($to, Stage::slurp($from));
}


# --- what a user reads -------------------------------------------------------

sub refusals {
    my $second = sub {
        $browser->click('button');
        $browser->wait_for_page('Thank you');
        back();
    };

    my %way = (
        'conflict' => [409, sub {
            open_refused('conflict', 'token one');
            $second->();
            $browser->js('void (document.forms[0].elements.note.value = "other")');
            $browser->click('button');
        }],

        'in-progress' => [409, sub {
            open_refused('in-progress');
            $browser->click('button');
        }, \&come_back],

        'in-progress, with a token' => [409, sub {
            open_refused('in-progress-key', 'token four');
            $browser->click('button');
        }, \&reload_pending],

        'not-kept' => [409, sub {
            open_refused('not-kept', 'page');
            $second->();
            $browser->click('button');
        }],

        'similar' => [409, sub {
            open_refused('similar', 'token two');
            $second->();
            open_refused('similar', 'token three');
            $browser->click('button');
        }],

        'missing' => [400, sub {
            open_refused('missing');
            $browser->click('button');
        }],

        'malformed' => [400, sub {
            open_refused('malformed', 'token bad');
            $browser->click('button');
        }],

        'unavailable' => [503, sub {
            my $http = HTTP::Tiny->new;
            my $echo = "http://127.0.0.1:$stage->{port}{refusals}/echo";
            my $n = 0;

            my $form = sub {
                $http->post_form($echo, { n => ++$n }, { headers => { accept => 'text/html' } });
            };

            1 until $form->()->{status} == 503 || $n > 1000;
            open_refused('unavailable');
            $browser->click('button');
        }],

        # last: it takes the workers
        'unknown, in doubt' => [409, sub {
            open_refused('in-doubt');
            $browser->click('button');
        }],
    );

    for my $name (sort keys %way) {
        my ($status, $code, $then) = @{ $way{$name} };
        my $refused = sub {
            $code->();
            is(answered(), $status, "$name: $status");
            is_readable($name, "http://127.0.0.1:$stage->{port}{refusals}/$called");
        };

        # the first is still being executed when the second comes
        if ($name =~ /^in-progress|in doubt/) {
            $stage->under_way("$dir/weather", $code, sub {
                kill KILL => workers() if $name =~ /in doubt/;
                in_another_tab($refused, $then);
            });

        } else {
            $refused->();
        }
    }
}


sub open_refused {
    my ($path, @weather) = @_;

    weather(@weather);
    $called = $path;
    $browser->go("http://127.0.0.1:$stage->{port}{refusals}/$path");
    $browser->wait_for("document.readyState === 'complete' && document.forms.length
                        && location.pathname === '/$path'", 'form');
    fill();
}


# how many requests the application has begun with
sub begun { return -s "$dir/weather.begun" || 0 }


sub workers { return map { 0 + $_ } `ps -o pid= --ppid $stage->{nginx}` }


sub screenshots {
    my ($name) = @_;

    return if !$ENV{BROWSER_SCREENSHOTS};

    $browser->screenshot($name);
    $browser->phone(1);
    $browser->screenshot("$name-phone");
    $browser->phone(0);
}


# large enough, on a phone as well, and with a way on
sub is_readable {
    my ($name, $from) = @_;
    (my $file = $name) =~ s/\W+/-/g;

    screenshots("refusal-$file");
    $browser->phone(1);

    is($browser->js('document.documentElement.lang'), 'en', "$name: its language");
    is($browser->js('document.querySelectorAll("h1").length'), 1, "$name: a heading");
    is($browser->js('innerWidth'), 360, "$name: as wide as a phone");
    cmp_ok($browser->js('document.documentElement.scrollWidth'), '<=', 360,
           "$name: nothing sticks out");
    cmp_ok($browser->js('parseFloat(getComputedStyle(document.querySelector("p")).fontSize)'),
           '>=', 16, "$name: in letters that can be read");
    unlike($browser->text, qr/idempoten|token|\bkey\b|request/i, "$name: in words of people");

    # what may have been executed must not be sent again from a fresh form, but
    # where the content stands for the key that is no harm
    is($browser->js('[].map.call(document.links, a => a.href).join()'),
       $name =~ /^(?:missing|malformed|unavailable|in-progress)$/ ? $from : '',
       "$name: with a way back, if that is safe");

    # a strict policy takes its style away, if it does not allow it
    is($browser->js('getComputedStyle(document.body).maxWidth === "none"') ? 1 : 0,
       $name eq 'malformed' ? 1 : 0, "$name: its style");

    # in the dark
    my $light = $browser->js('getComputedStyle(document.body).color');
    $browser->call('Emulation.setEmulatedMedia',
                   features => [{ name => 'prefers-color-scheme', value => 'dark' }]);
    isnt($browser->js('getComputedStyle(document.body).color'), $light,
         "$name: dark where that is wanted");
    screenshots("refusal-$file-dark");
    $browser->call('Emulation.setEmulatedMedia', features => []);
    $browser->phone(0);
}


# without a token the page returns to the form by itself
sub come_back {
    my $n = begun();

    $browser->wait_for("document.readyState === 'complete' && document.forms.length",
                       'form, by itself');
    is(begun(), $n, 'in-progress: it returns to the form, without sending anything');
    unlink "$dir/weather.hold";
    fill();
    $browser->click('button');
    thanked();
    is(begun(), $n, 'in-progress: sent again, the result comes');
}


sub reload_pending {
    my $n = begun();

    unlink "$dir/weather.hold";
    until_true(sub { rows('refusals', $called) });
    reload();
    thanked();
    is(begun(), $n, 'in-progress, with a token: reloaded, the result comes');
}


# --- helpers -----------------------------------------------------------------

sub posts { return scalar(() = Stage::slurp("$dir/legacy-form.access.log") =~ /"POST /g) }


# twice(NAME, CODE[, N]): N rows unprotected, one row if protected
sub twice {
    my ($name, $code, $n) = @_;

    try_at('unprotected', $name, $n || 2, $code);
    try_at($_, $name, 1, $code) for qw(protected guarded);
}


sub try_at {
    my ($site, $name, $expected, $code) = @_;

    ($at, $called) = ($site, $name);

    my $ok = eval { $code->($site); 1 };
    my $error = $@;

    $browser->javascript(1);
    is($ok ? rows($site, $name) : "it failed: $error", $expected,
       "$site, $name: " . ($expected == 1 ? 'one row' : "$expected rows"));
}


# the first of these is being executed when the next one comes, and so is each one
# if nobody keeps them from it
sub meanwhile {
    my ($first, @more) = @_;

    $stage->under_way("$dir/weather", $first, sub {
        for my $next (@more) {
            my $n = begun();

            $next->();
            until_true(sub { begun() > $n }) if $at eq 'unprotected';
        }
    });
}


# of the button, which may be another page's by then: single ones or a double one's
sub clicks {
    my @nth = @_;
    my $button = $browser->where('button');

    return map { my $n = $_; sub { $browser->click($button, wait => 1, nth => $n) } } @nth;
}


sub rows {
    my ($site, $name) = @_;

    open my $php, '-|', 'php', '-r', <<'END', "$dir/$site.sqlite", $name or die "php: $!\n";
        $query = (new PDO("sqlite:$argv[1]"))
                     ->prepare('SELECT count(*) FROM bookings WHERE name = ?');
        $query->execute([$argv[2]]);
        echo $query->fetchColumn();
END
    return readline $php;
}


sub weather {
    Stage::spew("$dir/weather", join "\n", @_);
}


# the form, filled in; what is told apart by the name
sub open_form {
    $browser->go("http://127.0.0.1:$stage->{port}{$at}/");
    $browser->wait_for("document.readyState === 'complete' && document.forms.length
                        && location.port === '$stage->{port}{$at}'", 'form');
    fill();
}


sub fill {
    $browser->js("var field = document.forms[0].elements.name;
                  field.value = '$called'; field.focus()");
}


sub thanked { $browser->wait_for_page("Thank you, $called") }


# the status of what came instead of the form
sub answered {
    return $browser->wait_for(
        "document.readyState === 'complete' && !document.forms.length
         && performance.getEntriesByType('navigation')[0].responseStatus", 'answer');
}


sub back {
    $browser->back;
    $browser->wait_for("document.readyState === 'complete' && document.forms.length", 'form');
}


sub reload {
    $browser->js('document.documentElement.className = "old"');
    $browser->reload;
    $browser->wait_for("document.readyState === 'complete'
                        && document.documentElement.className !== 'old'", 'page again');
}


sub in_another_tab {
    my @code = grep { defined } @_;
    my $other = $browser->tab;
    my $ok = eval { $_->() for @code; 1 };
    my $error = $@;

    $browser->close_tab($other);
    $browser->switch($tab);
    die $error if !$ok;
}
