#!/usr/bin/perl

# WordPress as Debian has it, with examples/wordpress-comments.conf and without:
# what its visitors get who click twice, and how many comments there are then.
#
# All of it is below one temporary directory: a copy of WordPress, its database
# and PHP-FPM on sockets of their own. No service of the system is used or touched.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/browser";

use Browser;
use HTTP::Tiny;
use Stage;
use Test::More;
use Time::HiRes qw(sleep);

Stage::needs(qw(chromium php mariadbd mariadb-install-db));
Stage::fpm_command();

-d '/usr/share/wordpress' or plan skip_all => 'no WordPress here';

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

my $stage = Stage->new;
my $dir = $stage->{dir};
my $browser;

END { undef $browser; $stage->end if $stage }

database();
wordpress();

$browser = Browser->new("$dir/browser", screenshots => $ENV{BROWSER_SCREENSHOTS});


# --- two requests ------------------------------------------------------------

{
    my $first = post('stock', 'one after the other');
    my $second = post('stock', 'one after the other');

    is($first->{status}, 302, 'stock: a comment is taken');
    is($second->{status}, 409, 'stock: the same again is an error');
    like($second->{content}, qr/Duplicate comment detected/, 'stock: as WordPress says it');

    $first = post('protected', 'one after the other, protected');
    $second = post('protected', 'one after the other, protected');

    is($first->{status}, 302, 'protected: a comment is taken');
    is($second->{status}, 302, 'protected: so is the same again');
    is($second->{headers}{location}, $first->{headers}{location}, 'protected: the very same');
    is($second->{headers}{'idempotent-replayed'}, 'true', 'protected: without WordPress');
    is_deeply($second->{headers}{'set-cookie'}, $first->{headers}{'set-cookie'},
              'protected: with its cookies');
    is(comments('one after the other, protected'), 1, 'protected: one comment');

    my $empty = post('protected', '');

    is($empty->{status}, 200, 'protected: an empty comment gets an error page');
    like($empty->{content}, qr/please type your comment text/i, 'protected: of WordPress');
    is(post('protected', '')->{headers}{'idempotent-replayed'}, undef,
       'protected: each time anew');
}


# --- two clicks --------------------------------------------------------------

sub two_clicks {
    my ($site, $text, $pause) = @_;

    write_comment($site, $text);
    my $where = $browser->where('#submit');
    my $click = sub { $browser->click($where, wait => 1); sleep $pause // 0 };

    $stage->under_way("$dir/comments", $click, $click);
}

two_clicks('stock', 'two clicks');
$browser->wait_for_page('Duplicate comment detected');
$browser->screenshot('wordpress-stock');
is(comments('two clicks'), 1, 'stock, two clicks: one comment, but an error for its author');

two_clicks('protected', 'two clicks, protected');
commented('two clicks, protected');
$browser->screenshot('wordpress-protected');
is(comments('two clicks, protected'), 1, 'protected, two clicks: one comment');

# nobody tells when the second one is at nginx: it has longer each time
my $waited = qr/POST \/wp-comments-post\.php HTTP\/1\.1" 302 idempotency=WAITED/;
my ($log, $text);

$browser->javascript(0);

for my $pause (0.1, 1, 5, 25) {
    $text = "two clicks, no JavaScript, $pause";
    two_clicks('protected', $text, $pause);
    commented($text);
    $log = Stage::slurp("$dir/wordpress-comments.access.log");
    last if $log =~ $waited;
}

$browser->javascript(1);
is(comments($text), 1, 'protected, two clicks, no JavaScript: one comment');
like($log, $waited, 'the second click without JavaScript waited for the first one');

# back, corrected, and sent again: what many do after an error page
later();
write_comment('protected', '');
$browser->click('#submit');
$browser->wait_for_page('type your comment text');
$browser->back;
$browser->wait_for('document.readyState === "complete" && document.querySelector("#comment")',
                   'form');
$browser->js('void (document.querySelector("#comment").value = "forgotten at first")');
$browser->click('#submit');
commented('forgotten at first');
is(comments('forgotten at first'), 1, 'an empty comment, back, and completed: a comment');

is($stage->complaints, '', 'nginx has no complaints');

done_testing();


# --- helpers -----------------------------------------------------------------

sub url { return "http://127.0.0.1:$stage->{port}{$_[0]}" }


sub post {
    my ($site, $text) = @_;

    later();

    return HTTP::Tiny->new(timeout => 60, max_redirect => 0)->post_form(
        url($site) . '/wp-comments-post.php',
        { comment => $text, author => 'Ann', email => 'ann@example.org', url => '',
          comment_post_ID => 1, comment_parent => 0, submit => 'Post Comment',
          'wp-comment-cookies-consent' => 'yes' });
}


# in a browser that lets an empty comment pass, as the form of a newer WordPress
# does not
sub write_comment {
    my ($site, $text) = @_;

    later();
    $browser->go(url($site) . '/?p=1');
    $browser->wait_for("document.readyState === 'complete' && document.querySelector('#comment')
                        && location.port === '$stage->{port}{$site}'", 'form');
    $browser->js(<<"END");
        for (const [name, value] of [['comment', '$text'], ['author', 'Ann'],
                                     ['email', 'ann\@example.org']]) {
            document.querySelector('#commentform #' + name).value = value;
        }
        document.querySelector('#commentform').noValidate = true;
        document.querySelector('#submit').scrollIntoView({ block: 'center',
                                                           behavior: 'instant' });
END
}


sub commented {
    my ($text) = @_;

    $browser->wait_for("document.readyState === 'complete' && /^#comment-/.test(location.hash)
                        && document.querySelector(location.hash).innerText.includes('$text')",
                       "comment \"$text\"");
}


sub comments { return sql("SELECT count(*) FROM wp_comments WHERE comment_content = '$_[0]'") }


# WordPress takes one comment in 15 seconds
sub later {
    sql('UPDATE wp_comments SET comment_date_gmt = comment_date_gmt - INTERVAL 1 HOUR');
}


sub sql {
    my ($sql) = @_;

    return run('php', '-r', <<'END', "$dir/db.sock", $sql);
        $db = new mysqli(null, 'root', '', 'wordpress', 0, $argv[1]);
        $result = $db->query($argv[2]);
        echo is_object($result) ? $result->fetch_row()[0] : '';
END
}


sub run {
    my (@command) = @_;

    open my $out, '-|', @command or die "$command[0]: $!\n";
    my $said = do { local $/; readline $out };
    close $out or die "@command[0, 1]: $said\n";

    return $said;
}


# --- the stage ---------------------------------------------------------------

sub database {
    my $user = getpwuid $>;
    my @where = ('--no-defaults', "--datadir=$dir/db", "--user=$user");

    run('mariadb-install-db', @where, '--auth-root-authentication-method=normal',
        '--skip-test-db', "--tmpdir=$dir");

    my $db = $stage->start('mariadbd', @where, "--socket=$dir/db.sock", '--skip-networking',
                           "--pid-file=$dir/db/pid", '--innodb-flush-log-at-trx-commit=0',
                           "--tmpdir=$dir");
    $stage->until('database', sub { -S "$dir/db.sock" }, $db);
}


sub wordpress {
    # nginx's workers and PHP may be other users
    run('cp', '-rL', '--no-preserve=ownership', '/usr/share/wordpress', "$dir/wordpress");
    run('cp', '-rL', '--no-preserve=ownership', glob('/var/lib/wordpress/wp-content/themes'),
        "$dir/wordpress/wp-content/");

    mkdir "$dir/wordpress/wp-content/mu-plugins";
    mkdir "$dir/browser";

    Stage::spew("$dir/wordpress/wp-config.php", <<"END");
<?php
define('DB_NAME', 'wordpress');
define('DB_USER', 'root');
define('DB_PASSWORD', '');
define('DB_HOST', 'localhost:$dir/db.sock');
define('DB_CHARSET', 'utf8mb4');
define('DISABLE_WP_CRON', true);
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('WP_HOME', 'http://' . (\$_SERVER['HTTP_HOST'] ?? 'localhost'));
define('WP_SITEURL', WP_HOME);
\$table_prefix = 'wp_';
defined('ABSPATH') || define('ABSPATH', __DIR__ . '/');
require ABSPATH . 'wp-settings.php';
END

    # the comment is there, then its author is told: where WordPress takes its time
    Stage::spew("$dir/comments.begun", '');
    chmod 0666, "$dir/comments.begun";
    Stage::spew("$dir/wordpress/wp-content/mu-plugins/mail.php", <<"END");
<?php
function wp_mail() { return true; }
add_action('comment_post', function () {
    file_put_contents('$dir/comments.begun', '.', FILE_APPEND);
    for (\$i = 0; \$i < 6000 && file_exists('$dir/comments.hold'); \$i++) {
        usleep(10000);
        clearstatcache();
    }
});
END

    run('php', '-r', <<'END', "$dir/db.sock", "$dir/wordpress");
        (new mysqli(null, 'root', '', '', 0, $argv[1]))->query('CREATE DATABASE wordpress');
        define('WP_INSTALLING', true);
        require "$argv[2]/wp-load.php";
        require ABSPATH . 'wp-admin/includes/upgrade.php';
        wp_install('Workshops', 'admin', 'admin@example.org', true, '', 'secret');
        update_option('comment_previously_approved', 0);
END

    my $conf = Stage::slurp("$Stage::root/examples/wordpress-comments.conf");

    # the example as it is, but for where things are, and once more without us
    $conf =~ s/127\.0\.0\.1:8450/127.0.0.1:PORT(protected)/g;
    $conf =~ s/unix:\/run\/php\/php-fpm\.sock/unix:php.sock/g;
    $conf =~ s/\/usr\/share\/wordpress/wordpress/g;

    my ($server) = $conf =~ /^(    server \{\n.*?^    \}\n)/ms or die 'no server';

    $server =~ s/PORT\(protected\)/PORT(stock)/;
    $server =~ s/^ *(?:idempotency|sub_filter)[^;]*;\n//mg;
    $conf =~ s/^}\n\z/$server}\n/m or die 'no place for another server';

    $stage->fpm;
    $stage->nginx($conf);
}
