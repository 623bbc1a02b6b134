#!/usr/bin/perl

# examples/woocommerce-checkout.conf, with a stand-in that sends what WooCommerce's
# checkout sends, behind PHP-FPM: one order for two clicks, whether the script sends
# it, the browser itself, or the checkout block. How many orders the shop has taken
# is the judge.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/browser";

use Browser;
use HTTP::Tiny;
use Stage;
use Test::More;

Stage::needs(qw(chromium));
Stage::fpm_command();

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

my $stage = Stage->new;
my $dir = $stage->{dir};
my $shop = "$dir/data/shop";
my $browser;

END { undef $browser; $stage->end if $stage }

set_the_stage();

$browser = Browser->new("$dir/browser", screenshots => $ENV{BROWSER_SCREENSHOTS});

for my $way (['the script', ''], ['the browser itself', ''], ['the block', '?blocks']) {
    my ($name, $page) = @$way;

    $browser->javascript($name ne 'the browser itself');

    checkout($page, $name);
    two_clicks();
    my $order = ordered();

    is(orders($name), 1, "$name, two clicks: one order");

    # with another nonce, another attribution, and an account
    checkout($page, $name);
    two_clicks(1);
    is(ordered(), $order, "$name, the page anew, and again: the same order");
    is(orders($name), 1, "$name: it is still one");

    checkout($page, "$name, something else");
    two_clicks();
    isnt(ordered(), $order, "$name, something else: another order");
    is(orders("$name, something else"), 1, "$name: one of it");
}

# what is no order is as it was
{
    my $http = HTTP::Tiny->new(timeout => 60);
    my $url = "http://127.0.0.1:$stage->{port}{shop}/?wc-ajax=add_to_cart";

    is($http->post_form($url, { product_id => 7 })->{status}, 200, "the cart, $_") for 1 .. 3;
    is(lines('cart', 7), 3, 'three times the same into the cart are three');
}

my $log = Stage::slurp("$dir/woocommerce-checkout.access.log");

like($log, qr/"POST \/\?wc-ajax=checkout HTTP\/1\.1" 200 idempotency=$_ /, "the log names $_")
    for qw(NEW REPLAYED);
like($log, qr/"POST \/\?wc-ajax=add_to_cart HTTP\/1\.1" 200 idempotency=BYPASS /,
     'and what was none of it');

is($stage->complaints, '', 'nginx has no complaints');

done_testing();


# --- helpers -----------------------------------------------------------------

sub set_the_stage {
    my $conf = Stage::slurp("$Stage::root/examples/woocommerce-checkout.conf");

    # the example as it is, but for where things are
    $conf =~ s/127\.0\.0\.1:8460/127.0.0.1:PORT(shop)/g or die 'no port';
    $conf =~ s/unix:\/run\/php\/php-fpm\.sock/unix:php.sock/g;
    $conf =~ s/\/usr\/share\/wordpress/shop/g;
    $conf =~ s/^(\s+)fastcgi_param REDIRECT_STATUS 200;\n/$&$1fastcgi_param DATABASE $shop;\n/m
        or die 'no parameters';

    mkdir "$dir/$_" for qw(shop browser data);
    chmod 0777, "$dir/data";
    Stage::spew("$dir/shop/index.php", Stage::slurp("$Stage::root/t/browser/shop.php"));
    $stage->fpm;
    $stage->nginx($conf);
}


sub checkout {
    my ($page, $comments) = @_;

    eval { $browser->js('document.title = "left", 0') };
    $browser->go("http://127.0.0.1:$stage->{port}{shop}/$page");
    $browser->wait_for("document.readyState === 'complete' && document.title === 'Checkout'",
                       'checkout');
    $browser->js("void (document.forms.checkout.order_comments.value = '$comments')");
}


# the second one while the first is being executed, if it is
sub two_clicks {
    my ($again) = @_;
    my $where = $browser->where('form button');
    my $click = sub { $browser->click($where, wait => 1) };

    $again ? $click->() : $stage->under_way($shop, $click, $click);
}


sub ordered {
    return $browser->wait_for("document.readyState === 'complete'
                               && document.body.innerText.match(/^Order (\\d+)/)?.[1]", 'order');
}


sub orders { return lines('orders', $_[0]) }


sub lines {
    my ($file, $line) = @_;

    return scalar grep { !defined $line || $_ eq "$line\n" } Stage::slurp("$shop.$file") =~ /^.*\n/mg;
}
